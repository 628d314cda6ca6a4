"""The connection to the engine, and the state that it has reported. No Textual."""
