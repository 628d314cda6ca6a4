"""Files of MLIR, as text or bytecode: read in a process of their own, and made graphs that begin as IR."""
