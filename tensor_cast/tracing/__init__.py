"""From a program to a Graph: what it calls, on which tensors, from which module."""
