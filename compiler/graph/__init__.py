"""The Buddy graph: nodes, element types, transforms and the partition into functions. Knows neither torch nor MLIR."""
