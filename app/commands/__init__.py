"""What the user can do, a module for each task; each acts on the workbench that it is given."""
