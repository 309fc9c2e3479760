"""Shows a simulation: tables for a person, JSON and CSV for programs, a Chrome trace, a summary of a sweep.

Only renders plain values; no arithmetic but sums and shares of sums.
"""
