"""Profiles compiled code: counters in the code, the minimum work of nodes, and the report on both."""
