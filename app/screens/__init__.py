"""The modal screens of the workbench: pickers, forms, help, details."""
