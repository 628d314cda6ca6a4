"""Reads dumps of other compilers: logs and folders with the IR after each pass."""
