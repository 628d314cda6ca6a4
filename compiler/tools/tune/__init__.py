"""Searches a space of recipes for the fastest correct one."""
