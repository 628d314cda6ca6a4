"""The compiler and its engine: PyTorch programs in, stages of IR, objects and reports out.

Importing this package imports nothing heavy; each module names what it needs.
"""
