"""The passes that a recipe may name. Each pass of this project is one module; the folder listing is the catalogue."""
