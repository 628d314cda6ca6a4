"""Convolution kernels on channels-last buffers: implicit matrix products, and depthwise windows."""
