"""Starts other processes, communicates with them, and ends them: one-shot, forked and persistent ones."""
