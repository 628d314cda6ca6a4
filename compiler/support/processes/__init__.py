"""Starts other processes of this project, exchanges messages with them, and ends them.

Work runs in another process if it may crash, never end, or hold the GIL. There are three ways to start one:

- A **one-shot call** runs a function in a new interpreter: one value in, one answer out. Its stderr is captured, and
  its time is limited. `interpreters.call_in_process` is for an event loop, `interpreters.call_and_wait` for a thread.
- A **worker** answers messages in a new interpreter until its owner ends it; after a crash the owner starts another
  one. `worker_process.WorkerProcess` is for an event loop, `interpreters.BlockingWorker` for a thread.
- A **fork** has the modules and data that this process has loaded. `forks.reply_in_child` runs one for one reply,
  `forks.ForkedWorker` for any number of messages, and `forks.fork_to` starts one that outlives the request. Do not fork
  a process that has used torch's threads: the child hangs in its first parallel op.

Messages are frames of `protocol.connection` over a `channel`; a one-shot call has one MessagePack value in each
direction. All new interpreters run `__main__`, which imports the module of one function, named `module:function`. A
process is killed when its starter ends, for whatever reason, and inherits the starter's memory limit (`lifetime`).
"""
