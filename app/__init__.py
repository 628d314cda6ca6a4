"""The command line and the workbench. Imports neither torch nor MLIR."""

if __name__ != "buddy.app":
    raise ImportError(f"`import {__name__}` would load a second copy of buddy.app: write `import buddy.app`")
