"""Frozen values and pure rules; imports nothing but the standard library and pydantic."""
