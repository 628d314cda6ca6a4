"""The MLIR bindings, walking and printing of IR, and locations that map ops to graph nodes."""
