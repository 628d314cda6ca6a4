"""The command line and the workbench. Imports neither torch nor MLIR."""
