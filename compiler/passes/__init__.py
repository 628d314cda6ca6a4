"""The passes that a recipe may name. Each pass of this project is one module, named like the pass."""
