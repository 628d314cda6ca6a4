"""Algorithms on lines of text: differences, folds, wrapping, abbreviations. No Textual."""
