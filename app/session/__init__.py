"""The connection to the engine, and what it has reported so far. No Textual."""
