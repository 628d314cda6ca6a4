"""Opens what is not a live PyTorch function: scripts, `.mlir`, ONNX, TorchScript and exported programs."""
