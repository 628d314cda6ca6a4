"""Searches a space of recipes for the fastest one that is right."""
