"""Tools on whole compilations: bisection, profiles, tuning, numerics, extraction, export, recording, test harnesses."""
