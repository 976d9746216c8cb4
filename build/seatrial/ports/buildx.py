"""Build images with `docker buildx` into OCI archives whose digest depends on nothing but what goes in."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.model.errors import BuildError, CommandError, EngineError, SeatrialError
from seatrial.ports import process
from seatrial.ports.engine import NO_ROOM, as_error

BUILD_SECONDS = 3600.0
GONE = (
    "cannot connect to the docker daemon",
    "error reading from server",
    "connection refused",
    "connection reset",
    "broken pipe",
    "code = unavailable",
    "unexpected eof",
    "transport is closing",
    "closed network connection",
    "no such file or directory: /var/run/docker.sock",
)
"""Words by which buildx says that the engine went away, not that the build is wrong."""

FAILED_STEP = re.compile(r"^\d+\.\d+ (?P<said>.+)$")


@dataclass(frozen=True, slots=True)
class Build:
    """Everything that one build takes in. Nothing else reaches it: no network, no registry, no environment."""

    context: Path
    dockerfile: Path
    contexts: Mapping[str, str]
    """Named build contexts: folders, or `docker-image://NAME@sha256:…`."""
    labels: Mapping[str, str]
    epoch: int
    """SOURCE_DATE_EPOCH: no file in the image is younger, and the image says it was created then."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    platform: str = "linux/amd64"
    compression: str = "zstd"
    level: int = 1
    cached: bool = True
    """Take finished steps from the builder's cache; the bytes are the same either way, and tests prove it."""


def find_buildx() -> list[str]:
    """Return the command that runs buildx: the first docker command on PATH that has the plugin.

    Raises:
        EngineError: no docker command has it.
    """
    seen: list[str] = []
    for folder in os.get_exec_path():
        program = shutil.which("docker", path=folder)
        if program is None or program in seen:
            continue
        seen.append(program)
        done = process.run([program, "buildx", "version"], timeout=60, check=False)
        if done.status == 0:
            return [program, "buildx"]
    if not seen:
        raise EngineError(
            "there is no docker command",
            do="install Docker's command line with buildx (Debian: docker-cli docker-buildx)",
        )
    raise EngineError(
        f"{', '.join(seen)} has no buildx",
        why="images are built through it; the older builder cannot build reproducibly",
        do="install the plugin (Debian: docker-buildx, Docker's own packages: docker-buildx-plugin)",
    )


def command(build: Build, archive: Path, metadata: Path, buildx: list[str]) -> list[str]:
    """Return the command line of a build; mappings are sorted, so the same build gives the same line."""
    # rewrite-timestamp needs a tar output; the engine's own image output refuses it.
    output = (
        f"type=oci,dest={archive},rewrite-timestamp=true,oci-mediatypes=true,"
        f"compression={build.compression},compression-level={build.level},force-compression=true"
    )
    argv = [*buildx, "build", "--progress=plain", "--provenance=false", "--sbom=false", "--network=none"]
    argv += [f"--platform={build.platform}", f"--output={output}", f"--metadata-file={metadata}"]
    for name, place in sorted(build.contexts.items()):
        argv += ["--build-context", f"{name}={place}"]
    for name, value in sorted({**build.arguments, "SOURCE_DATE_EPOCH": str(build.epoch)}.items()):
        argv += ["--build-arg", f"{name}={value}"]
    for name, value in sorted(build.labels.items()):
        argv += ["--label", f"{name}={value}"]
    if not build.cached:
        argv.append("--no-cache")
    return [*argv, "--file", str(build.dockerfile), str(build.context)]


def build_archive(build: Build, archive: Path) -> str:
    """Build into an OCI archive and return the manifest's digest.

    Raises:
        BuildError: a step failed; the reason is the step's own last words.
        EngineError: the engine is down, went away in the middle, or has no buildx.
        DiskError: no room.
    """
    metadata = archive.with_suffix(".json")
    argv = command(build, archive, metadata, find_buildx())
    environment = {
        "SOURCE_DATE_EPOCH": str(build.epoch),
        "DOCKER_CLI_HINTS": "false",
        "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    }
    try:
        process.run(argv, timeout=BUILD_SECONDS, env=environment, bound=True)
    except CommandError as error:
        archive.unlink(missing_ok=True)
        raise build_error(error) from None
    except BaseException:
        archive.unlink(missing_ok=True)
        raise
    digest = json.loads(metadata.read_text(encoding="utf-8")).get("containerimage.digest", "")
    metadata.unlink()
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise BuildError(
            "buildx names no digest for what it built", do="see that `docker buildx version` is 0.13 or newer"
        )
    return str(digest)


def build_error(error: CommandError) -> SeatrialError:
    """Return what a failed buildx run means, in one line."""
    output = error.output
    lower = output.lower()
    if any(mark in lower for mark in NO_ROOM):
        line = next(line for line in output.splitlines() if any(mark in line.lower() for mark in NO_ROOM))
        return as_error("build the image", line)
    if any(mark in lower for mark in GONE):
        line = next(line for line in reversed(output.splitlines()) if any(mark in line.lower() for mark in GONE))
        return EngineError(
            "the container engine went away during the build",
            why=line.strip()[:300],
            do="see that `docker info` answers, and run the same again",
        )
    why = step_words(output) or error.why
    return BuildError("the image could not be built", why=why[:400], do="mend that step in the platform's Dockerfile")


def step_words(output: str) -> str:
    """Return the last words of the failed step, in one line, else buildx's own error line."""
    said = [match["said"].strip() for line in output.splitlines() if (match := FAILED_STEP.match(line.strip()))]
    if said:
        return " ".join(said[-4:])
    errors = [line for line in output.splitlines() if "ERROR" in line or "error:" in line]
    return errors[-1].strip() if errors else ""
