"""Winograd's F(2x2, 3x3) and F(4x4, 3x3): convolutions with 3x3 windows that need fewer products."""
