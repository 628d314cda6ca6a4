"""What works on whole compilations: bisect, profile, tune, compare numerics, extract, export, record, and harnesses."""
