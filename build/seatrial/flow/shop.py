"""What the flows share: the checkout, the terminal, the cache and the index."""

from __future__ import annotations

from dataclasses import dataclass

from seatrial.flow.project import Project
from seatrial.ports.cache import Cache, default_root
from seatrial.ports.console import Console
from seatrial.ports.index import Index, open_index


@dataclass(frozen=True, slots=True)
class Shop:
    """A checkout with its doors opened; the index asks nothing before it is used."""

    project: Project
    console: Console
    cache: Cache
    index: Index


def open_shop(project: Project, console: Console) -> Shop:
    """Return a shop over the user's cache folder and pip configuration."""
    return Shop(project, console, Cache(default_root(), console.detail), open_index())
