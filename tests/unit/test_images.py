"""What the engine's answers about an image mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import docker
import pytest
import requests
from docker.errors import APIError, NullResource

from seatrial.model.errors import EngineError, UsageError
from seatrial.ports.images import DockerImages


def engine_that(raises: Exception) -> DockerImages:
    def inspect_image(image: str) -> Any:
        raise raises

    return DockerImages(cast(docker.DockerClient, SimpleNamespace(api=SimpleNamespace(inspect_image=inspect_image))))


def answer(status: int) -> APIError:
    response = requests.Response()
    response.status_code = status
    return APIError("no", response=response)


@pytest.mark.parametrize("raised", [answer(400), NullResource("Resource ID was not provided")])
def test_words_that_name_no_image_are_the_users_mistake(raised: Exception) -> None:
    with pytest.raises(UsageError, match=r"'\*' names no image"):
        engine_that(raised).facts("*")


def test_an_engine_that_fails_is_the_engines() -> None:
    with pytest.raises(EngineError):
        engine_that(answer(500)).facts("vllm")
