"""Benchmarks of whole programs: this compiler compared with the other compilers of PyTorch users, with interleaved
calls.
"""
