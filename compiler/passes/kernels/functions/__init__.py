"""Functions of the math dialect as arithmetic that vectorises; the docstring of each gives its error in ULP."""
