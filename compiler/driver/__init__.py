"""Takes a graph through the recipe's passes to an artifact, with or without a record of every stage."""
