"""Graph -> Graph: how a device or a stack runs a traced program."""
