"""Opens ONNX models: reads and checks them, imports them by torch-mlir, and runs them as the reference."""
