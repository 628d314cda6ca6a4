"""Which dims of a tensor lie next to each other in memory: orders of dims, and ops rewritten to work in them."""
