"""Verbs, their options, and the one place where errors are caught."""
