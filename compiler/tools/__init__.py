"""Tools on whole compilations: bisection, profiles, tuning, extraction, export, recording, and test harnesses."""
