"""Functions of the math dialect as arithmetic that vectorises, each with its error in ULP."""
