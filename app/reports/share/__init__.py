"""The shared report: one HTML file with every stage, the graph and the results. Does not import Textual."""
