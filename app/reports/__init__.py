"""Results as text, tables, plots and JSON, for screens and headless verbs. No Textual."""
