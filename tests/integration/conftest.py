"""Fixtures that several files of integration tests share."""

from __future__ import annotations

from collections.abc import Iterator

import docker
import pytest
from docker.errors import DockerException

from tests.smokelab import suite, trial, venv

__all__ = ["suite", "trial", "venv"]


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    try:
        client = docker.from_env()
        client.ping()
    except DockerException as error:
        pytest.skip(f"not run: no engine answers here ({error})")
    yield client
    client.close()
