"""The engine: a server that always answers, with workers that may hang, crash or be killed.

`server` handles the client's requests, and `session` does the work by calling workers (`worker`). The modules `host`,
`compiler` and `iree` run in the workers' processes, `runner_process` in forks of the host. The engine's process imports
neither torch nor MLIR.
"""
