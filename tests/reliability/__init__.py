"""Fuzzing and fault injection campaigns: seeded, shardable, resumable, with a bounded part in the tests."""
