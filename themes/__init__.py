"""The presentation of IR: colour themes, and lexers for FX graphs, MLIR, LLVM IR, assembly and PTX."""

if __name__ != "buddy.themes":
    raise ImportError(f"`import {__name__}` would load a second copy of buddy.themes: write `import buddy.themes`")
