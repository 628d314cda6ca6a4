"""The user's commands, one module per task. Each acts on the workbench that it is given."""
