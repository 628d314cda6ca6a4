"""Runs the passes of a recipe on a graph, up to an artifact, with or without keeping a snapshot of every stage."""
