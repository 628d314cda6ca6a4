"""Recipes, their history, settings and the files that outlive a session. No Textual."""
