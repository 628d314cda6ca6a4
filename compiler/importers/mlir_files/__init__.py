"""Opens MLIR files, as text or bytecode: reads them in a separate process, and makes graphs that start as IR."""
