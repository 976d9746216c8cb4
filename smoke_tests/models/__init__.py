"""Recipes of the tiny models, and their golden answers.

A recipe writes the same bytes on every machine, with the standard library alone.
"""
