"""Explains what TorchDynamo did: records a script, or reads a trace, and reports graph breaks and recompilations."""
