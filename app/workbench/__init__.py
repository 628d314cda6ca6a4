"""The Textual application: its screen of panes, keys on their way to actions, start and end in a terminal."""
