"""Reduces a module on which a compiler fails, as long as the user's command still fails on it."""
