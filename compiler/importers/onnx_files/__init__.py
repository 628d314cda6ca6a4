"""Opens ONNX models: read, checked, imported by torch-mlir into the torch dialect.

ONNX's own evaluator is the reference.
"""
