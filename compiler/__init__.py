"""The compiler and its engine: PyTorch programs in, stages of IR, objects and reports out.

Importing this package imports nothing heavy; each module names what it needs.
"""

if __name__ != "buddy.compiler":
    raise ImportError(f"`import {__name__}` would load a second copy of buddy.compiler: write `import buddy.compiler`")
