"""Users' own rules: every ``*.py`` dropped here whose name does not start with ``_`` is loaded at start."""
