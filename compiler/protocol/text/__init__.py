"""Stage text as data: lines, the nodes of a line, search, differences. Needs neither MLIR nor a terminal."""
