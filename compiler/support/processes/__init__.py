"""Starting other processes, talking with them, and ending them: one-shot, forked and persistent."""
