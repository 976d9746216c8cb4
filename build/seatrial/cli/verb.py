"""What a verb of the command line is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from seatrial.flow.project import Project
from seatrial.ports.console import Console


@dataclass(frozen=True, slots=True)
class Context:
    """What every verb is given: the checkout and the terminal."""

    project: Project
    console: Console


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: its words, its options, what it does. `run` returns the exit code."""

    name: str
    summary: str
    description: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Context, argparse.Namespace], int]
    passes_words: bool = False
    """True when every word goes on to another program, which has options of its own."""
