"""Memory layouts of tensors as orders of dims, and rewrites of ops to these layouts."""
