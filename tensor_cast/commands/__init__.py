"""Commands beside the main one: each module reads files and arguments, and is reached by a two-line door."""
