"""The engine: a server that always answers, with workers that may hang, crash or be killed.

`server` handles the client's requests, `session` does the work by calling `worker`s; `host` and `compiler` run in the
workers' processes. Only those two import torch or MLIR.
"""
