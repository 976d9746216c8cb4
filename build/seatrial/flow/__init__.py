"""The order of the stages, planned before the first side effect."""
