"""Generators of kernels: contractions in register blocks, packing, vector loops, polynomials."""
