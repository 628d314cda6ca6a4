"""The panes: graph, passes, IR, source, outputs."""
