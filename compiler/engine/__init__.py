"""The engine: a server that always answers, over workers that may hang, crash or be killed.

`server` speaks with the client, `session` does the work by calling `worker`s, `host` and `compiler` are what runs in
their processes. Nothing but those two imports torch or MLIR.
"""
