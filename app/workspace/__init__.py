"""Recipes, their edit history, settings and saved sessions. No Textual."""
