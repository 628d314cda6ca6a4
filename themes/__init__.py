"""How IR looks: colour themes, and lexers for MLIR, LLVM IR and assembly."""
