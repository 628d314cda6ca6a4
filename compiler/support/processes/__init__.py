"""Starts other processes of this project, exchanges messages with them, and ends them.

Work leaves a process because it may crash, never end, or hold the GIL. There are three shapes:

- A **one-shot call** runs a function in a new interpreter: one message in, one answer out. Its stderr is captured, and
  its time is limited. `interpreters.call_in_process` is for an event loop, `interpreters.call_and_wait` for a thread.
- A **worker** serves messages in a new interpreter until it is ended; its owner starts another one after a crash.
  `worker_process.WorkerProcess` is for an event loop, `interpreters.BlockingWorker` for a thread.
- A **fork** works with what this process has loaded: `forks.reply_in_child` gives one reply, `forks.ForkedWorker` any
  number of messages, and `forks.fork_to` a process that outlives the request. Do not fork a process that has used
  torch's threads: the child hangs in its first parallel op.

Messages are frames of `protocol.wire` over a `channel`; a one-shot call has one MessagePack value each way. All new
interpreters run `__main__`, which imports the module of one function, named `module:function`. A process ends with the
one that started it, however that ends, and inherits its memory limit (`lifetime`).
"""
