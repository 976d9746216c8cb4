from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from seatrial.model.errors import BuildError, CommandError, DiskError, EngineError, SeatrialError
from seatrial.ports.buildx import Build, build_error, command, step_words

BUILD = Build(
    context=Path("ctx"),
    dockerfile=Path("Dockerfile"),
    contexts={"wheels": "w", "tools": "t"},
    labels={"b": "2", "a": "1"},
    epoch=1700000000,
)
FAILED = """#12 [stage-1 3/8] RUN sh install.sh
#12 0.219 Resolved
#12 ERROR: process "/bin/sh -c sh install.sh" did not complete successfully: exit code: 2
------
 > [stage-1 3/8] RUN sh install.sh:
0.301 error: Hash mismatch for numpy
------
ERROR: failed to solve: process "/bin/sh -c sh install.sh" did not complete successfully: exit code: 2"""


def test_nothing_from_outside_gets_into_a_build() -> None:
    argv = command(BUILD, Path("x.tar"), Path("x.json"), ["docker", "buildx"])
    assert {"--network=none", "--provenance=false", "--sbom=false"} <= set(argv)
    output = next(word for word in argv if word.startswith("--output="))
    assert "type=oci" in output
    assert "rewrite-timestamp=true" in output
    assert "name=" not in output
    assert "SOURCE_DATE_EPOCH=1700000000" in argv
    assert not any(word in ("--tag", "-t", "--push", "--load") for word in argv)


def test_the_order_of_mappings_does_not_matter() -> None:
    other = dataclasses.replace(BUILD, contexts={"tools": "t", "wheels": "w"}, labels={"a": "1", "b": "2"})
    where = (Path("x.tar"), Path("x.json"), ["docker", "buildx"])
    assert command(BUILD, *where) == command(other, *where)


@pytest.mark.parametrize(
    ("output", "kind", "words"),
    [
        (FAILED, BuildError, "Hash mismatch for numpy"),
        ("#5 ERROR: write /x: no space left on device\nERROR: failed to solve", DiskError, "no space left"),
        ("ERROR: Cannot connect to the Docker daemon at unix:///x. Is it running?", EngineError, "went away"),
        ("ERROR: failed to receive status: rpc error: code = Unavailable desc = error reading", EngineError, "Unavail"),
        ("Dockerfile:3\nERROR: failed to solve: dockerfile parse error on line 3", BuildError, "parse error"),
    ],
)
def test_what_buildx_says_becomes_one_error_of_the_right_kind(
    output: str, kind: type[SeatrialError], words: str
) -> None:
    error = build_error(CommandError("docker ended with status 1", why="docker buildx build", output=output))
    assert type(error) is kind
    assert words in str(error)
    assert "\n" not in str(error)


def test_the_failed_step_s_last_words_are_kept() -> None:
    assert step_words(FAILED) == "error: Hash mismatch for numpy"
    assert step_words("nothing") == ""
