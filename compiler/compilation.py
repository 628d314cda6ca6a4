"""From a recipe to stages and an artifact, memoised by the hash of the recipe's prefix."""
