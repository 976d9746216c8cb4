"""Doors to the outside: processes, HTTP, the terminal, files, git, the engine, registries."""
