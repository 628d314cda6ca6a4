"""Functions of the math dialect as arithmetic that vectorises; the docstring of each gives its error in ULP.

In these modules, `s` is the `Arithmetic` by which a function emits its code in single precision, and `d` the one in
double precision. In the bodies, `n` is an integer as a float, and `r` or `fraction` the remainder after it.
"""
