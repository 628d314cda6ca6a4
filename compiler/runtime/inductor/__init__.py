"""Inductor as a backend: compiles a graph by `torch._inductor`, with its stages, its fusion decisions and provenance.

Everything here runs in a fork of the host, because Inductor may crash, start compilers and use threads.
"""
