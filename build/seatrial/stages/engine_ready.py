"""Have a container engine that can build, and the programs the build needs; install them where that is allowed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

import docker

from seatrial.model.errors import EngineError
from seatrial.ports import engine, engine_setup
from seatrial.ports.buildx import find_buildx
from seatrial.ports.console import Console

PROGRAMS = {
    "git": "git",
    "mmdebstrap": "mmdebstrap",
    "docker-registry": "docker-registry",
    "openssl": "openssl",
    "g++": "g++",
}
"""Programs that a build runs, and the Debian packages that hold them."""


def engine_ready(*, setup: bool, console: Console) -> docker.DockerClient:
    """Return a client of an engine that answers and can build reproducibly.

    An engine that the user named (DOCKER_HOST, a context) is used as it is and never replaced by one started here.

    Args:
        setup: whether packages may be installed and the engine started.

    Raises:
        EngineError: none answers and none may or can be installed, or the one that answers lacks something.
    """
    if not engine.answers():
        named = engine.chosen_by_user()
        if named:
            raise EngineError(
                f"the container engine that {named} names does not answer",
                do=f"start it, or unset {named}, and run the same again",
            )
        if shutil.which("dockerd") is None:
            engine_setup.install_engine(console, allowed=setup)
        engine_setup.start_engine(console, engine.answers, allowed=setup)
    client = engine.connect()
    engine.require_abilities(client)
    find_buildx()
    return client


def programs_ready(names: Iterable[str], *, setup: bool, console: Console) -> None:
    """Have the named programs of :data:`PROGRAMS`, installed where they lack and that is allowed.

    Raises:
        EngineError: one is missing and may not or cannot be installed.
    """
    engine_setup.install_tools(console, {name: PROGRAMS[name] for name in names}, allowed=setup)
