"""Kernel generators: register-blocked contractions, packing, vector loops, polynomials."""
