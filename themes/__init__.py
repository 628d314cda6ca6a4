"""The presentation of IR: colour themes, and lexers for MLIR, LLVM IR and assembly."""

if __name__ != "buddy.themes":
    raise ImportError(f"`import {__name__}` would load a second copy of buddy.themes: write `import buddy.themes`")
