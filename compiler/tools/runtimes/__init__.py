"""Runs a program by other inference runtimes, compares it with eager, and finds the first node that differs."""
