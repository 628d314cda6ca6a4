"""The four panes: graph, passes, IR, outputs."""
