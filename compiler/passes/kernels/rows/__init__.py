"""Rows: structured ops that share their outer loops become one kernel, row by row."""
