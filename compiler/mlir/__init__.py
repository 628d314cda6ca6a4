"""The MLIR bindings, walking and printing of IR, and locations that lead back to nodes of the graph."""
