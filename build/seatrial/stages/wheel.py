"""Overlay mode: upstream's binaries as they are, our Python over them, in one reproducible wheel."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from installer.records import RecordEntry
from packaging.tags import parse_tag
from packaging.version import InvalidVersion, Version

from seatrial import __version__
from seatrial.model import wheel as text
from seatrial.model.errors import BuildError, IntegrityError
from seatrial.model.fixes import AppliedFix, Kind
from seatrial.model.record import RecordedWheel
from seatrial.ports.files import need_room, scratch_beside, sha256_file
from seatrial.ports.wheelfile import SIGNATURES, Wheel, open_wheel, record_entry, same_release
from seatrial.ports.zipcopy import Copied, Fresh, write_zip

VERSION_FILE = "vllm/_version.py"


@dataclass(frozen=True, slots=True)
class Official:
    """What describes vLLM where the binaries come in somebody else's package."""

    metadata: bytes
    """METADATA of the official wheel of the same release."""
    licences: Mapping[str, bytes] = field(default_factory=dict)
    """Licence texts by the names that METADATA's License-File fields use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Everything that decides the bytes of an overlay wheel."""

    upstream: Path
    """Wheel that the binaries come from; its digest was checked when it was fetched."""
    tree: Path
    """Patched source tree: a folder that holds `vllm/`."""
    changed: tuple[str, ...]
    """Paths in the tree that fixes changed or added, as `git diff --name-only` writes them."""
    removed: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    """Paths that the wheel's builder changed from upstream's: the tree's are laid over these as well."""
    fixes: tuple[AppliedFix, ...] = ()
    version: str
    """Full version, see :func:`seatrial.model.wheel.wheel_version`."""
    distribution: str = "vllm"
    official: Official | None = None
    """None: the upstream wheel is the official one."""


@dataclass(frozen=True, slots=True)
class OverlayWheel:
    """A finished wheel, and what of it is not upstream's."""

    path: Path
    recorded: RecordedWheel
    tag: str
    replaced: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    left_out: tuple[str, ...]
    """Changed paths that no wheel holds (tests, docs)."""
    notes: tuple[str, ...]
    """Where this wheel says something else than upstream's, one sentence each."""


def overlay(request: Overlay, out_dir: Path) -> OverlayWheel:
    """Write the patched wheel into `out_dir` and return what it is; the same request gives the same bytes.

    Raises:
        BuildError: a fix is native, a path cannot be overlaid, or the pieces do not fit together.
        IntegrityError: the upstream wheel is unsound.
        DiskError: no room.
    """
    refuse_native(request.fixes)
    _check_version(request.version)
    if both := set(request.changed) & set(request.removed):
        raise BuildError(f"{min(both)} is both changed and removed", do="report this: the fixes stage lists each once")
    changed, beside = text.sort_paths(request.changed)
    removed, removed_beside = text.sort_paths(request.removed)
    with open_wheel(request.upstream) as wheel:
        _check_release(wheel, request)
        tag = text.true_tag(wheel.file_tag, wheel.names, wheel.path.name)
        stem = f"{text.escaped(request.distribution)}-{request.version}"
        path = out_dir / f"{stem}-{'-'.join(tag)}.whl"
        restored = tuple(name for name in request.restored if wheel.has(name) and (request.tree / name).is_file())
        package = _package_files(wheel, request, tuple(sorted({*changed, *restored} - set(removed))))
        about, notes = _dist_info(wheel, request, f"{stem}.dist-info", "-".join(tag))
        members = _members(wheel, package | about, set(removed), stem)
        room = request.upstream.stat().st_size + sum(len(each.data) for each in members if isinstance(each, Fresh))
        need_room(path, room, "the wheel")
        with scratch_beside(path) as scratch:
            write_zip(scratch / path.name, wheel.archive, members)
            (scratch / path.name).replace(path)
        here = frozenset(wheel.names)
    recorded = RecordedWheel(
        file=path.name,
        version=request.version,
        mode="overlay",
        sha256=sha256_file(path),
        size=path.stat().st_size,
    )
    return OverlayWheel(
        path=path,
        recorded=recorded,
        tag="-".join(tag),
        replaced=tuple(name for name in sorted(package) if name in here),
        added=tuple(name for name in sorted(package) if name not in here),
        removed=tuple(name for name in removed if name in here),
        left_out=tuple(sorted((*beside, *removed_beside))),
        notes=(*notes, *_restored_notes(request.restored, restored)),
    )


def refuse_native(fixes: Sequence[AppliedFix]) -> None:
    """Raise BuildError when a fix changes what is compiled: upstream's binaries cannot hold it."""
    if native := [fix.id for fix in fixes if fix.kind is Kind.NATIVE]:
        raise BuildError(
            f"overlay mode cannot carry the native fix {', '.join(native)}",
            why="it changes sources that are compiled, and overlay mode keeps upstream's binaries",
            do=f"build this platform from source, or run again with --without {' --without '.join(native)}",
        )


def _restored_notes(asked: Sequence[str], done: Sequence[str]) -> list[str]:
    return [
        f"{name} was changed by the wheel's builder: "
        + ("upstream's is laid over it" if name in done else "it is kept, upstream's source has no such file")
        for name in sorted(set(asked) - {VERSION_FILE})
    ]


def _check_version(version: str) -> None:
    try:
        normal = str(Version(version))
    except InvalidVersion:
        normal = ""
    if normal != version:
        raise BuildError(f"{version!r} is no version in PEP 440's normal form", do="report this: seatrial makes it")


def _check_release(wheel: Wheel, request: Overlay) -> None:
    if not same_release(str(wheel.version), request.version):
        raise BuildError(
            f"{wheel.path.name} is not the release that {request.version} is built on",
            do="use the upstream wheel that the base's lock names",
        )
    _ = wheel.metadata
    if request.official is not None:
        said = text.field(request.official.metadata, "Version", "the official METADATA")
        if len(said) != 1 or not same_release(said[0], request.version):
            raise IntegrityError(f"the official METADATA is of {' '.join(said) or 'no version'}, not {request.version}")


def _package_files(wheel: Wheel, request: Overlay, changed: tuple[str, ...]) -> dict[str, Fresh]:
    """Return the changed files and the stamped version file; what each replaces was compared with RECORD."""
    files: dict[str, Fresh] = {}
    for name in changed:
        source = request.tree / name
        if not source.is_file() or not source.resolve().is_relative_to(request.tree.resolve()):
            raise BuildError(f"the patched tree has no regular file {name}", why=f"looked in {request.tree}")
        mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
        files[name] = Fresh(name, source.read_bytes(), mode)
        if wheel.has(name):
            wheel.read(name)
    stamped = files[VERSION_FILE].data if VERSION_FILE in files else wheel.read(VERSION_FILE)
    files[VERSION_FILE] = Fresh(VERSION_FILE, text.stamp_version(stamped, request.version))
    return files


def _dist_info(wheel: Wheel, request: Overlay, folder: str, tag: str) -> tuple[dict[str, Fresh], tuple[str, ...]]:
    """Return the dist-info files that differ from upstream's, RECORD left out, and what is to be said about them."""
    notes: list[str] = []
    old = text.field(wheel.read(f"{wheel.dist_info}/WHEEL"), "Tag", "WHEEL")
    tags = sorted(str(each) for each in parse_tag(tag))
    if sorted(old) != tags:
        notes.append(
            f"upstream's WHEEL says {', '.join(old)}; its file name and its extension modules say {', '.join(tags)}"
        )
    pure = text.field(wheel.read(f"{wheel.dist_info}/WHEEL"), "Root-Is-Purelib", "WHEEL") == ["true"]
    official = request.official.metadata if request.official else wheel.metadata
    metadata, loosened = text.merge_metadata(
        official, wheel.metadata, name=request.distribution, version=request.version
    )
    notes += [f"Requires-Dist `{each}` is stated without its local version" for each in loosened]
    files = {
        f"{folder}/METADATA": Fresh(f"{folder}/METADATA", metadata),
        f"{folder}/WHEEL": Fresh(f"{folder}/WHEEL", text.wheel_text(f"seatrial {__version__}", pure, tags)),
    }
    for name in text.field(metadata, "License-File", "METADATA"):
        target = f"{folder}/licenses/{name}"
        given = request.official.licences.get(name) if request.official else None
        if given is not None:
            files[target] = Fresh(target, given)
        elif not wheel.has(f"{wheel.dist_info}/licenses/{name}"):
            raise BuildError(
                f"the licence file {name} is nowhere to be had",
                why=f"METADATA names it and {wheel.path.name} does not hold it",
                do="hand over the official wheel's licence files",
            )
    return files, tuple(notes)


def _members(wheel: Wheel, fresh: Mapping[str, Fresh], removed: set[str], stem: str) -> list[Copied | Fresh]:
    """Return all members: upstream's order, changed ones in place, added ones behind, dist-info and RECORD last."""
    old_info, old_data = f"{wheel.dist_info}/", f"{wheel.dist_info.removesuffix('.dist-info')}.data/"
    info = f"{stem}.dist-info/"
    unkept = {f"{wheel.dist_info}/{name}" for name in ("RECORD", *SIGNATURES)}
    rows: dict[str, RecordEntry] = {}
    members: dict[str, Copied | Fresh] = {}
    for name in wheel.names:
        if name in removed or name in unkept:
            continue
        new_name = name.replace(old_info, info, 1) if name.startswith(old_info) else name
        new_name = new_name.replace(old_data, f"{stem}.data/", 1) if name.startswith(old_data) else new_name
        members[new_name] = fresh[new_name] if new_name in fresh else Copied(name, new_name)
        rows[new_name] = wheel.record[name]
    for name in sorted(set(fresh) - set(members)):
        members[name] = fresh[name]
    for name, member in members.items():
        if isinstance(member, Fresh):
            rows[name] = record_entry(name, member.data)
    ordered = [name for name in members if not name.startswith(info)]
    ordered += [name for name in members if name.startswith(info)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows((name, *rows[name].to_row()[1:]) for name in ordered)
    writer.writerow((f"{info}RECORD", "", ""))
    return [*(members[name] for name in ordered), Fresh(f"{info}RECORD", stream.getvalue().encode())]
