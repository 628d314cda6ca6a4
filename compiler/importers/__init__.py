"""Opens scripts, `.mlir`, ONNX, TorchScript and exported programs."""
