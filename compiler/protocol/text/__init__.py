"""Stage text as data: lines, which nodes a line comes from, search. Knows neither MLIR nor a terminal."""
