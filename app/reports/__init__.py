"""Results as text, tables and plots, as data that any screen or command prints. No Textual."""
