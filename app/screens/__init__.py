"""What opens over the workbench: pickers, forms, help, details."""
