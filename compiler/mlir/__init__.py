"""The MLIR bindings, traversal and printing of IR, and locations that map ops to graph nodes."""
