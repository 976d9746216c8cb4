"""The build's own wheel, broken: by its name, its metadata, its members."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.ports.zipcopy import Copied, Fresh, RawZip, open_zip, write_zip
from seatrial.stages.inspect import inspect_wheel
from tests.faults.good import Good
from tests.faults.judge import quiet
from tests.faults.model import Fault, Judged

TAG = "cp38-abi3-manylinux_2_28_x86_64"
KIND = "wheel tag"


@dataclass
class WheelEdit:
    """A copy of the good wheel in the making: members that are other, gone or new, and its file name."""

    source: RawZip
    name: str
    other: dict[str, bytes] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    @property
    def info(self) -> str:
        """Return the dist-info folder."""
        return next(name.split("/")[0] for name in self.source.names if ".dist-info/" in name)

    def text(self, name: str) -> str:
        """Return a file of the dist-info folder as it is now."""
        path = f"{self.info}/{name}"
        return (self.other.get(path) or self.source.read(path)).decode()

    def edit(self, name: str, old: str, new: str) -> None:
        """Change words in a file of the dist-info folder, and its line in RECORD."""
        text = self.text(name)
        if old not in text:
            raise LookupError(f"{old!r} is not in {name}")
        self.put(f"{self.info}/{name}", text.replace(old, new).encode())

    def put(self, name: str, data: bytes) -> None:
        """Write a member, and its line in RECORD."""
        self.other[name] = data
        self.recorded(name, data)

    def recorded(self, name: str, data: bytes | None) -> None:
        """Change a member's line in RECORD, or (None) drop it."""
        lines = [line for line in self.text("RECORD").splitlines() if not line.startswith(f"{name},")]
        if data is not None:
            told = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.insert(0, f"{name},sha256={told},{len(data)}")
        self.other[f"{self.info}/RECORD"] = "\n".join([*lines, ""]).encode()

    def write(self, folder: Path) -> Path:
        """Write the wheel."""
        members: list[Copied | Fresh] = [
            Fresh(name, self.other[name]) if name in self.other else Copied(name, name)
            for name in self.source.names
            if name not in self.gone
        ]
        members += [Fresh(name, data) for name, data in self.other.items() if name not in self.source.names]
        write_zip(folder / self.name, self.source, members)
        return folder / self.name


@contextmanager
def edited(good: Good) -> Iterator[tuple[WheelEdit, Path]]:
    """Give an edit of the good wheel and a folder to write it to."""
    with tempfile.TemporaryDirectory(dir=good.scratch) as folder, open_zip(good.wheel) as source:
        yield WheelEdit(source, good.wheel.name), Path(folder)


def wheel(  # noqa: PLR0917 - a row of a table
    name: str, row: int, check: str, words: tuple[str, ...], what: str, change: Callable[[WheelEdit], None]
) -> Fault:
    """Return a fault of the wheel."""

    def judge(good: Good) -> Judged:
        with edited(good) as (edit, folder):
            change(edit)
            return judged(edit.write(folder), good)

    return Fault(f"wheel-{name}", row, KIND, check, words, what, judge=judge, subject="wheel")


def judged(path: Path, good: Good) -> Judged:
    """Inspect a wheel as `seatrial inspect` does, beside what the build expects."""
    report = inspect_wheel(path, good.expected, quiet())
    return Judged(tuple(case.name for case in report.bad), tuple(case.reason for case in report.bad), report.subject)


def promise(tag: str) -> Callable[[WheelEdit], None]:
    """Promise another system in the name and in WHEEL alike."""

    def change(edit: WheelEdit) -> None:
        edit.name = edit.name.replace(TAG, tag)
        edit.edit("WHEEL", f"Tag: {TAG}", f"Tag: {tag}")

    return change


def renamed(old: str, new: str) -> Callable[[WheelEdit], None]:
    """Rename the file alone."""

    def change(edit: WheelEdit) -> None:
        assert old in edit.name, edit.name
        edit.name = edit.name.replace(old, new)

    return change


def without_kernels(edit: WheelEdit) -> None:
    """Leave a build of the operators out, RECORD included."""
    edit.gone.add("vllm/_C_AVX2.abi3.so")
    edit.recorded("vllm/_C_AVX2.abi3.so", None)


def other_bytes(edit: WheelEdit) -> None:
    """Change a member and leave RECORD as it was."""
    edit.other["vllm/envs.py"] = edit.source.read("vllm/envs.py") + b"\n"


def unlisted(edit: WheelEdit) -> None:
    """Add a member that RECORD does not list."""
    edit.other["vllm/_moe_C.abi3.so"] = b"\x7fELF"


def impure(edit: WheelEdit) -> None:
    """Say that the wheel holds no native code."""
    edit.edit("WHEEL", "Root-Is-Purelib: false", "Root-Is-Purelib: true")


def unpatched(edit: WheelEdit, good: Good) -> None:
    """Bring a file back as it was before its fix."""
    edit.put("vllm/platforms/cpu.py", good.pristine("vllm/platforms/cpu.py"))


def unpatched_judge(good: Good) -> Judged:
    """Judge a wheel that was made from the tree before the fixes."""
    with edited(good) as (edit, folder):
        unpatched(edit, good)
        return judged(edit.write(folder), good)


def cut_judge(good: Good) -> Judged:
    """Judge a wheel whose end is missing, as after a copy that broke off."""
    with tempfile.TemporaryDirectory(dir=good.scratch) as folder:
        path = Path(folder) / good.wheel.name
        path.write_bytes(good.wheel.read_bytes())
        os.truncate(path, path.stat().st_size // 2)
        return judged(path, good)


WHEEL_FAULTS: tuple[Fault, ...] = (
    wheel(
        "glibc-2-17",
        29,
        "wheel-natives",
        ("needs glibc", "promise 2.17"),
        "name and WHEEL promise an older glibc than the symbols need",
        promise("cp38-abi3-manylinux_2_17_x86_64"),
    ),
    wheel(
        "glibc-2014",
        29,
        "wheel-natives",
        ("needs glibc", "2.17"),
        "the old form of the name promises an older glibc than the symbols need",
        promise("cp38-abi3-manylinux2014_x86_64"),
    ),
    wheel(
        "glibc-name-alone",
        29,
        "wheel-tags",
        ("WHEEL says", "2_28", "2_17"),
        "the file was renamed to promise an older glibc",
        renamed("manylinux_2_28", "manylinux_2_17"),
    ),
    wheel(
        "musl",
        29,
        "wheel-natives",
        ("musl",),
        "name and WHEEL promise a system with another C library",
        promise("cp38-abi3-musllinux_1_2_x86_64"),
    ),
    wheel(
        "other-machine",
        30,
        "wheel-natives",
        ("is for X86_64", "aarch64"),
        "name and WHEEL promise another processor",
        promise("cp38-abi3-manylinux_2_28_aarch64"),
    ),
    wheel(
        "any-machine",
        30,
        "wheel-natives",
        ("is for X86_64", "any"),
        "name and WHEEL promise every system",
        promise("cp38-abi3-any"),
    ),
    wheel(
        "pure",
        30,
        "wheel-tags",
        ("Root-Is-Purelib: true", "native"),
        "WHEEL says that nothing in it is native",
        impure,
    ),
    wheel(
        "other-accelerator",
        30,
        "wheel-identity",
        ("cu129",),
        "the metadata names another accelerator's build than the file",
        lambda edit: edit.edit("METADATA", "Version: 0.28.0+cpu.st1", "Version: 0.28.0+cu129"),
    ),
    wheel(
        "renamed-version",
        21,
        "wheel-identity",
        ("0.27.1", "0.28.0+cpu.st1"),
        "the file was renamed to another version",
        renamed("0.28.0+cpu.st1", "0.27.1+cpu.st1"),
    ),
    wheel(
        "no-kernels",
        5,
        "wheel-patched",
        ("RECORD lists other files",),
        "a build of the operators was left out and nobody noticed",
        without_kernels,
    ),
    wheel("edited", 20, "wheel-record", ("vllm/envs.py differs",), "a member was changed afterwards", other_bytes),
    wheel("unlisted", 20, "wheel-record", ("vllm/_moe_C.abi3.so is not in RECORD",), "a member was added", unlisted),
    Fault(
        "wheel-unpatched",
        42,
        "stale",
        "wheel-patched",
        ("vllm/platforms/cpu.py is not the patched file",),
        "the wheel was made from the tree before the fixes",
        judge=unpatched_judge,
        subject="wheel",
    ),
    Fault(
        "wheel-cut",
        28,
        "tag",
        "wheel-archive",
        ("damaged",),
        "the wheel's end is missing, as after an upload that broke off",
        judge=cut_judge,
        subject="wheel",
    ),
)
