"""Seeded faults: each breaks a copy of a good artifact in one way, and the gate has to refuse it, naming the cause."""
