"""Runs the steps of a dump again, and bisects its stages."""
