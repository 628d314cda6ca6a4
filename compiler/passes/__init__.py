"""Every pass a recipe may name. The passes written here are one per module; the folder listing is the catalogue."""
