"""What a patched wheel is called and what its text files say; text in, text out."""

from __future__ import annotations

import re
from collections.abc import Iterable

from seatrial.model.errors import BuildError

INSTALLER_FIELDS = ("Requires-Python", "Requires-Dist", "Provides-Extra")
"""METADATA fields that follow from the binaries: they come from the wheel that holds them."""

OWN_FIELDS = ("Metadata-Version", "Name", "Version")

SOURCE_SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".hip", ".rs")

BESIDE_THE_PACKAGE = (
    ".buildkite/",
    ".github/",
    "benchmarks/",
    "docs/",
    "docker/",
    "examples/",
    "tests/",
    "tools/",
)
"""Folders of upstream's source tree that no wheel holds."""


def wheel_version(base: str, platform: str, revision: int) -> str:
    """Return `<base>+<platform>.st<N>`; hyphens become dots, as PEP 440 wants them (`0.15.1+cuda.sm80.st1`).

    A CPU platform's name has to contain `cpu`: vLLM finds out by this text that it runs on one.
    """
    return f"{base}+{platform.replace('-', '.')}.st{revision}"


def escaped(name: str) -> str:
    """Return a distribution name as wheel and `dist-info` names spell it."""
    return re.sub(r"[-_.]+", "_", name).lower()


def is_native(name: str) -> bool:
    """Tell whether a member is a shared library (`x.abi3.so`, `libx.so.1`)."""
    return re.search(r"\.(so(\.\d+)*|pyd|dylib)$", name) is not None


def sort_paths(paths: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the paths that fixes touch into those that a wheel holds and those that it does not; both sorted.

    Raises:
        BuildError: a path decides what is compiled or what the package needs, so that only a source build takes it in.
    """
    inside: list[str] = []
    beside: list[str] = []
    for path in sorted(set(paths)):
        if path.startswith(BESIDE_THE_PACKAGE):
            beside.append(path)
        elif path.startswith("vllm/") and not path.endswith(SOURCE_SUFFIXES) and not is_native(path):
            inside.append(path)
        else:
            raise BuildError(
                f"{path} is changed, and overlay mode cannot take that in",
                why="only Python and data files below vllm/ can be laid over upstream's binaries",
                do="build this platform from source, or leave the fix out",
            )
    return tuple(inside), tuple(beside)


def true_tag(file_tag: tuple[str, str, str], members: Iterable[str], origin: str) -> tuple[str, str, str]:
    """Return interpreter, ABI and platform tag as the native members prove them.

    A member named `x.abi3.so` loads into every CPython from the file name's on, one named `x.cpython-312-*.so` into
    3.12 only; files without such a mark prove nothing. The platform tag is the file name's: see `verify_wheel` for
    the check of what the natives need from the C library.

    Raises:
        BuildError: natives for several interpreters.
    """
    interpreter, abi, platform = file_tag
    natives = [name.rpartition("/")[2] for name in members if is_native(name)]
    exact = {found[1] for name in natives if (found := re.search(r"\.cpython-(\d+)[a-z]*-", name))}
    if len(exact) > 1:
        raise BuildError(f"{origin} holds extensions for several Pythons: {', '.join(sorted(exact))}")
    if exact:
        mark = f"cp{exact.pop()}"
        return mark, mark, platform
    return interpreter, abi, platform


def wheel_text(generator: str, pure: bool, tags: Iterable[str]) -> bytes:
    """Return a WHEEL file with the expanded tags, sorted."""
    lines = ["Wheel-Version: 1.0", f"Generator: {generator}", f"Root-Is-Purelib: {'true' if pure else 'false'}"]
    return "\n".join([*lines, *(f"Tag: {tag}" for tag in sorted(tags)), "", ""]).encode()


def split_headers(text: bytes, origin: str) -> tuple[list[tuple[str, str]], str]:
    """Return METADATA's or WHEEL's headers, in order, with their raw values (folded lines kept), and the body.

    Raises:
        BuildError: not UTF-8, or a line that is no header.
    """
    try:
        head, _, body = text.decode().replace("\r\n", "\n").partition("\n\n")
    except UnicodeDecodeError:
        raise BuildError(f"{origin} is not UTF-8") from None
    headers: list[tuple[str, str]] = []
    for line in head.strip("\n").split("\n"):
        if line[:1] in (" ", "\t") and headers:
            name, value = headers[-1]
            headers[-1] = (name, f"{value}\n{line}")
            continue
        name, colon, value = line.partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name):
            raise BuildError(f"{origin} holds a line that is no header: {line[:60]!r}")
        headers.append((name, value.strip()))
    return headers, body


def merge_metadata(official: bytes, binaries: bytes, *, name: str, version: str) -> tuple[bytes, tuple[str, ...]]:
    """Return METADATA that describes upstream's package and states what these binaries need.

    Everything that describes (author, licence, links, description) comes from the official wheel; INSTALLER_FIELDS
    come from the wheel that holds the binaries. A pin's local version (`torch==2.10.0+cpu`) is dropped: it names the
    index that its builder used, and the ABI is that of the release.

    Returns:
        The file, and the requirements that were loosened so, as they stood.
    """
    about, body = split_headers(official, "the official METADATA")
    needs, _ = split_headers(binaries, "the METADATA beside the binaries")
    standard = max((value for key, value in about + needs if key == "Metadata-Version"), key=_numbers, default="2.1")
    lines = [f"Metadata-Version: {standard}", f"Name: {name}", f"Version: {version}"]
    lines += [f"{key}: {value}" for key, value in about if key not in OWN_FIELDS + INSTALLER_FIELDS]
    loosened: list[str] = []
    for key, value in needs:
        if key in INSTALLER_FIELDS:
            loose = re.sub(r"(==\s*[0-9][^+;,\s]*)\+[A-Za-z0-9._-]+", r"\1", value) if key == "Requires-Dist" else value
            if loose != value:
                loosened.append(value)
            lines.append(f"{key}: {loose}")
    return ("\n".join(lines) + "\n\n" + body).encode(), tuple(loosened)


def field(text: bytes, key: str, origin: str) -> list[str]:
    """Return every value of one header field."""
    headers, _ = split_headers(text, origin)
    return [value for name, value in headers if name == key]


def stamp_version(generated: bytes, version: str) -> bytes:
    """Return upstream's generated `vllm/_version.py` with the wheel's version, written as setuptools-scm writes it.

    Raises:
        BuildError: the file has another form than the one that is known.
    """
    public, _, local = version.partition("+")
    parts = [repr(int(part) if part.isdigit() else part) for part in public.split(".")]
    pair = f"({', '.join([*parts, repr(local)] if local else parts)})"
    lines = generated.decode(errors="surrogateescape").split("\n")
    for name, value in (("__version__ = version", repr(version)), ("__version_tuple__ = version_tuple", pair)):
        at = [index for index, line in enumerate(lines) if line.startswith(f"{name} = ")]
        if len(at) != 1:
            raise BuildError(
                f"vllm/_version.py has {len(at)} lines `{name} = ...`, not one",
                do="teach seatrial.model.wheel.stamp_version this base's form",
            )
        lines[at[0]] = f"{name} = {value}"
    return "\n".join(lines).encode(errors="surrogateescape")


def _numbers(value: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", value))
