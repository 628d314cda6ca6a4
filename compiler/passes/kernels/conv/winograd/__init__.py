"""Convolutions with windows of 3x3 with fewer products: Winograd's F(2x2, 3x3) and F(4x4, 3x3)."""
