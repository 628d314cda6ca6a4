"""Convolution kernels on channels-last buffers: implicit GEMM, depthwise and Winograd."""
