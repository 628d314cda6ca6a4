"""The Textual application: screen layout, key handling, startup and exit in a terminal."""
