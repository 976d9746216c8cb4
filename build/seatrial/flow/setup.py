"""Make sure that this machine can build: an engine that answers, and the programs that builds and tests run."""

from __future__ import annotations

from seatrial.ports.console import Console
from seatrial.ports.engine import engine_errors
from seatrial.stages.engine_ready import engine_ready, programs_ready

BUILD = ("git", "mmdebstrap")
TESTS = ("docker-registry", "openssl", "g++")
"""Programs that only seatrial's own tests run: a real registry, certificates, ELF files made on the spot."""


def set_up(console: Console, *, allowed: bool, tests: bool) -> None:
    """Have an engine and the programs; install and start what is missing where that is allowed.

    Raises:
        EngineError: something is missing and may not or cannot be set up.
    """
    client = engine_ready(setup=allowed, console=console)
    programs_ready(BUILD + (TESTS if tests else ()), setup=allowed, console=console)
    with engine_errors("say what it is"):
        version = client.version()["Version"]
    console.line(f"engine: Docker {version}; programs: all there")
