"""Measured times: files of several kinds read into shapes and seconds by family, and this machine's own."""
