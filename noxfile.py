"""The front door: one session a verb. `nox -l` is the menu; what a session takes follows `--`."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = True

HERE = Path(__file__).parent
ENGINE = HERE / ".nox" / "engine"
"""One environment for all verbs of the engine, made on first use."""
PATIENCE = 60.0
"""Seconds that a verb gets to clean up after Ctrl-C; nox's own default is a third of a second."""
SOURCES = ("build/requirements/engine.txt", "pyproject.toml")
"""Files that say what the environment holds."""


def wanted() -> str:
    """Return what the environment is made of: requirements, Python, and its place, which a copied checkout changes."""
    files = b"".join((HERE / name).read_bytes() for name in SOURCES)
    return hashlib.sha256(files + f"{sys.version}\0{ENGINE}".encode()).hexdigest()


def prepare(session: nox.Session) -> None:
    """Install the hashed requirements and the engine once; a stamp says that nothing changed since."""
    stamp = ENGINE / "seatrial.stamp"
    state = wanted()
    if not stamp.is_file() or stamp.read_text() != state:
        session.run(sys.executable, "-m", "virtualenv", "-q", "--clear", str(ENGINE), external=True)
        install = (str(ENGINE / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check")
        session.run(*install, "--require-hashes", "-r", SOURCES[0], external=True)
        session.run(*install, "--no-deps", "--no-build-isolation", "-e", ".", external=True)
        stamp.write_text(state)
    session.env["PATH"] = f"{ENGINE / 'bin'}{os.pathsep}{os.environ['PATH']}"


def tool(name: str) -> str:
    """Return a program of that environment."""
    return str(ENGINE / "bin" / name)


def verb(session: nox.Session, *words: str) -> None:
    """Run one verb of the engine with what was typed after `--`; its exit code becomes nox's own."""
    prepare(session)
    try:
        session.run(
            tool("seatrial"),
            *words,
            *session.posargs,
            external=True,
            stderr=None,
            interrupt_timeout=PATIENCE,
            terminate_timeout=PATIENCE,
        )
    except nox.command.CommandFailed as failed:
        raise SystemExit(failed.return_code or 1) from None


@nox.session(name="build-cpu", venv_backend="none")
def build_cpu(session: nox.Session) -> None:
    """Build, inspect, smoke and name the image for x86-64 CPUs. [--base V] [--without FIX] [--push REGISTRY/REPO]"""
    verb(session, "build", "cpu")


@nox.session(name="build-cuda-sm80", venv_backend="none")
def build_cuda_sm80(session: nox.Session) -> None:
    """Build for NVIDIA A100 class GPUs (sm_80)."""
    verb(session, "build", "cuda-sm80")


@nox.session(name="build-cuda-sm90", venv_backend="none")
def build_cuda_sm90(session: nox.Session) -> None:
    """Build for NVIDIA H100/H200 class GPUs (sm_90)."""
    verb(session, "build", "cuda-sm90")


@nox.session(name="build-rocm-gfx942", venv_backend="none")
def build_rocm_gfx942(session: nox.Session) -> None:
    """Build for AMD MI300 class GPUs (gfx942)."""
    verb(session, "build", "rocm-gfx942")


@nox.session(name="build-rocm-gfx950", venv_backend="none")
def build_rocm_gfx950(session: nox.Session) -> None:
    """Build for AMD MI350 class GPUs (gfx950)."""
    verb(session, "build", "rocm-gfx950")


@nox.session(name="build-xpu", venv_backend="none")
def build_xpu(session: nox.Session) -> None:
    """Build for Intel GPUs."""
    verb(session, "build", "xpu")


@nox.session(name="status", venv_backend="none")
def status(session: nox.Session) -> None:
    """Print what each fix is to each base. [--base V] [--json]"""
    verb(session, "status")


@nox.session(name="check", venv_backend="none")
def check(session: nox.Session) -> None:
    """Run every detector over a vLLM source folder, sdist or wheel. PATH"""
    verb(session, "check")


@nox.session(name="repair", venv_backend="none")
def repair(session: nox.Session) -> None:
    """Rewrite a downstream tree that no patch fits. FIX TREE [--write-patch FILE] [--dry-run]"""
    verb(session, "repair")


@nox.session(name="inspect", venv_backend="none")
def inspect(session: nox.Session) -> None:
    """Look into a finished image or wheel without running its server. IMAGE|WHEEL"""
    verb(session, "inspect")


@nox.session(name="smoke", venv_backend="none")
def smoke(session: nox.Session) -> None:
    """Make an image, an environment or a server answer real requests. IMAGE [--profile NAME] [--compare IMAGE]"""
    verb(session, "smoke")


@nox.session(name="lock-base", venv_backend="none")
def lock_base(session: nox.Session) -> None:
    """Pin an upstream release in build/bases/. VERSION [--commit SHA]"""
    verb(session, "lock-base")


@nox.session(name="lock-requirements", venv_backend="none")
def lock_requirements(session: nox.Session) -> None:
    """Pin an image's run-time requirements in images/locks/. PLATFORM --base V"""
    verb(session, "lock-requirements")


@nox.session(name="seatrial", venv_backend="none")
def seatrial(session: nox.Session) -> None:
    """Run any verb of the engine. VERB [OPTION ...]"""
    verb(session)


@nox.session
def golden(session: nox.Session) -> None:
    """Make the golden answers of the tiny models again with Hugging Face transformers."""
    session.install("--require-hashes", "-r", "build/requirements/golden.txt")
    session.install("torch==2.13.0")
    session.run("python", "-m", "smoke_tests.models.golden", *session.posargs)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the tests: unit, then the parts that use real git, a real engine, a real registry."""
    prepare(session)
    session.run(tool("seatrial"), "setup", "--for-tests", external=True)
    session.run(tool("python"), "-m", "pytest", "tests", *session.posargs, external=True)


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style and types."""
    prepare(session)
    session.run(tool("ruff"), "check", ".", external=True)
    session.run(tool("ruff"), "format", "--check", ".", external=True)
    session.run(tool("mypy"), external=True)


@nox.session(venv_backend="none")
def faults(session: nox.Session) -> None:
    """Seed faults into copies of good artifacts, and see that the gate refuses each. [--ci] [NAME ...]"""
    prepare(session)
    session.run(tool("seatrial"), "setup", "--for-tests", external=True)
    session.run(
        tool("python"),
        "-m",
        "tests.faults.run",
        *session.posargs,
        external=True,
        interrupt_timeout=PATIENCE,
        terminate_timeout=PATIENCE,
    )


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """Measure the numbers that are promised, as ratios, side by side in one run. [--only NAME]"""
    prepare(session)
    session.run(tool("python"), "-m", "tests.bench.run", *session.posargs, external=True)


@nox.session(name="lock-tools")
def lock_tools(session: nox.Session) -> None:
    """Pin seatrial's own requirements in build/requirements/."""
    session.install("uv")
    flags = ("--generate-hashes", "--universal", "--python-version=3.11", "--no-header", "--no-emit-index-url", "-q")
    for name in ("engine", "golden"):
        output = f"--output-file=build/requirements/{name}.txt"
        source = ("pyproject.toml",) if name == "engine" else ()
        session.run("uv", "pip", "compile", *source, f"--group=pyproject.toml:{name}", *flags, output)
