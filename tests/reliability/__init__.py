"""Campaigns that attack the whole product: each seeded, shared out, resumable, with a bounded share in the tests."""
