"""A small vLLM image made of bytes: files, a tar stream, native files and an engine that answers from memory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import posixpath
import struct
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.model.expectation import Expectation
from seatrial.ports.images import ImageFacts, OneRun
from seatrial.stages.inspect.load_script import MARK

SITE = "/opt/vllm/lib/python3.11/site-packages"
DIGEST = "sha256:" + "a" * 64
COMMIT = "1892993bc" + "0" * 31
SYSTEM = "/usr/lib/x86_64-linux-gnu"
OPERATORS = ["_C::one", "_C::two"]


def elf_bytes(
    needed: Iterable[str] = (),
    *,
    soname: str = "",
    runpath: str = "",
    rpath: str = "",
    interpreter: str = "",
    machine: int = 62,
    kind: int = 3,
) -> bytes:
    """Return a 64-bit little-endian ELF file with a dynamic section and nothing else."""
    strings = bytearray(b"\0")

    def text(value: str) -> int:
        at = len(strings)
        strings.extend(value.encode() + b"\0")
        return at

    tags = [(1, text(name)) for name in needed]
    tags += [(number, text(value)) for number, value in ((14, soname), (29, runpath), (15, rpath)) if value]
    segments = 3 if interpreter else 2
    strings_at = 64 + 56 * segments
    interpreter_at = strings_at + len(strings)
    spelled = interpreter.encode() + b"\0"
    dynamic_at = interpreter_at + len(spelled)
    tags += [(5, strings_at), (10, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    end = dynamic_at + len(dynamic)

    def segment(number: int, at: int, size: int) -> bytes:
        return struct.pack("<2I6Q", number, 4, at, at, at, size, size, 8)

    headers = segment(1, 0, end) + segment(2, dynamic_at, len(dynamic))
    headers += segment(3, interpreter_at, len(spelled)) if interpreter else b""
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    start = ident + struct.pack("<2HI3QI6H", kind, machine, 1, 0, 64, 0, 0, 64, 56, segments, 0, 0, 0)
    return start + headers + bytes(strings) + spelled + dynamic


def loader_cache(paths: Iterable[str]) -> bytes:
    """Return an `ld.so.cache` that lists these libraries."""
    known = sorted(paths)
    strings = bytearray()
    base = 48 + 24 * len(known)
    entries = []
    for path in known:
        name_at = base + len(strings)
        strings += posixpath.basename(path).encode() + b"\0"
        path_at = base + len(strings)
        strings += path.encode() + b"\0"
        entries.append(struct.pack("=i3IQ", 0x0303, name_at, path_at, 0, 0))
    return (
        struct.pack("=20s2I20x", b"glibc-ld.so.cache1.1", len(known), len(strings)) + b"".join(entries) + bytes(strings)
    )


@dataclass
class Disk:
    """Files of an image by absolute path: bytes and mode, or the target of a link."""

    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    hard: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, data: bytes | str = b"x", mode: int = 0o644) -> None:
        """Put a file."""
        self.files[path] = (data.encode() if isinstance(data, str) else data, mode)

    def tar(self) -> bytes:
        """Return the disk as a tar file."""
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w") as tar:
            for path, mode in sorted(self.folders.items()):
                tar.addfile(_member(path, tarfile.DIRTYPE, mode))
            for path, (data, mode) in sorted(self.files.items()):
                member = _member(path, tarfile.REGTYPE, mode)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
            for kind, links in ((tarfile.SYMTYPE, self.links), (tarfile.LNKTYPE, self.hard)):
                for path, aim in sorted(links.items()):
                    member = _member(path, kind, 0o777)
                    member.linkname = aim
                    tar.addfile(member)
        return target.getvalue()

    def install(self, name: str, version: str, files: dict[str, bytes], requires: Iterable[str] = ()) -> None:
        """Install a distribution with a right RECORD."""
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        lines = [f"Requires-Dist: {line}\n" for line in requires]
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{''.join(lines)}\nText.\n"
        everything = {**files, f"{info}/METADATA": metadata.encode()}
        for path, data in everything.items():
            self.add(f"{SITE}/{path}", data)
        rows = [f"{path},sha256={_record_digest(data)},{len(data)}" for path, data in everything.items()]
        self.add(f"{SITE}/{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))


def _member(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path.lstrip("/"))
    member.type, member.mode = kind, mode
    return member


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


PATCHED = b"# patched\n"


def good_disk() -> Disk:
    """Return the disk of an image that nothing is wrong with."""
    disk = Disk()
    disk.folders = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/home/vllm": 0o1777, "/opt": 0o755}
    disk.links = {"/lib": "usr/lib", "/lib64": "usr/lib64", "/opt/vllm/bin/python3": "/usr/bin/python3.11"}
    disk.add("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nvllm:x:10001:10001::/home/vllm:/bin/sh\n")
    disk.add("/usr/lib64/ld-linux-x86-64.so.2", elf_bytes(soname="ld-linux-x86-64.so.2"), 0o755)
    for name in ("libc.so.6", "libnuma.so.1"):
        disk.add(f"{SYSTEM}/{name}", elf_bytes(soname=name))
    disk.add("/etc/ld.so.cache", loader_cache([f"/lib/x86_64-linux-gnu/{n}" for n in ("libc.so.6", "libnuma.so.1")]))
    interpreter = elf_bytes(["libc.so.6"], interpreter="/lib64/ld-linux-x86-64.so.2")
    disk.add("/usr/bin/python3.11", interpreter, 0o755)
    disk.add("/usr/bin/passwd", b"x", 0o4755)
    disk.add("/opt/vllm/bin/vllm", "#!/opt/vllm/bin/python3\nimport vllm\n", 0o755)
    disk.add("/opt/vllm/pyvenv.cfg", "home = /usr/bin\nversion_info = 3.11.2\ninclude-system-site-packages = false\n")
    disk.install(
        "torch",
        "2.13.0",
        {
            "torch/__init__.py": b"",
            "torch/_C.cpython-311-x86_64-linux-gnu.so": elf_bytes(["libtorch.so", "libc.so.6"], runpath="$ORIGIN/lib"),
            "torch/lib/libtorch.so": elf_bytes(["libc10.so"], soname="libtorch.so", rpath="$ORIGIN"),
            "torch/lib/libc10.so": elf_bytes(["libc.so.6"], soname="libc10.so"),
        },
        ['filelock; python_version >= "3.11"', 'never; python_version < "3"'],
    )
    disk.install("filelock", "3.16.1", {"filelock/__init__.py": b""})
    disk.install(
        "vllm",
        "0.28.0+cpu.st1",
        {
            "vllm/__init__.py": b"import torch\n",
            "vllm/model.py": PATCHED,
            "vllm/_version.py": b"__version__ = version = '0.28.0'\n__commit_id__ = commit_id = 'g1892993bc'\n",
            "vllm/_C.abi3.so": elf_bytes(["libc10.so", "libtorch.so", "libnuma.so.1", "libc.so.6"]),
        },
        ["torch==2.13.0", "filelock>=3.16"],
    )
    return disk


def good_facts() -> ImageFacts:
    """Return the configuration of an image that nothing is wrong with."""
    return ImageFacts(
        digest=DIGEST,
        user="10001:10001",
        entrypoint=("vllm", "serve"),
        command=(),
        environment={"PATH": "/opt/vllm/bin:/usr/bin", "HOME": "/home/vllm", "VLLM_ROW": "1"},
        labels=good_labels(),
        health=("CMD", "/opt/vllm/bin/python3", "-c", "pass"),
        stop_signal="SIGTERM",
        working_dir="/home/vllm",
        machine="amd64",
        history=('ENTRYPOINT ["vllm" "serve"]', "RUN /bin/sh -c sh install.sh # buildkit", "ADD base.tar / # buildkit"),
        layer_bytes=0,
    )


def good_labels() -> dict[str, str]:
    """Return labels of a good image."""
    standard = {
        f"org.opencontainers.image.{name}": "something"
        for name in ("title", "version", "revision", "source", "created", "licenses")
    }
    return {**standard, "org.seatrial.base.version": "0.28.0", "org.seatrial.fixes": "gdn-state-dtype=applies"}


def good_expectation(**changes: Any) -> Expectation:
    """Return what the good image must be."""
    values: dict[str, Any] = {
        "platform": "cpu",
        "device": "cpu",
        "machine": "x86_64",
        "base": "0.28.0",
        "commit": COMMIT,
        "vllm_version": "0.28.0+cpu.st1",
        "distributions": {"vllm": "0.28.0+cpu.st1", "torch": "2.13.0", "filelock": "3.16.1"},
        "patched": {"vllm/model.py": hashlib.sha256(PATCHED).hexdigest()},
        "removed": ("vllm/gone.py",),
        "labels": {"org.seatrial.base.version": "0.28.0", "org.seatrial.fixes": "gdn-state-dtype=applies"},
        "environment": {"VLLM_ROW": "1"},
        "entrypoint": ("vllm", "serve"),
        "over_wheels_mb": 1,
        "operators": {"vllm._C": tuple(OPERATORS)},
    }
    return Expectation(**{**values, **changes})


def good_answer(**changes: Any) -> dict[str, Any]:
    """Return what the load script says in a good image."""
    answer: dict[str, Any] = {
        "flags": ["avx2", "avx512_bf16", "avx512f"],
        "torch": "2.13.0",
        "extensions": {"vllm._C": {"answer": None, "operators": OPERATORS}},
        "platform": {
            "answer": {"platform": "CpuPlatform", "device_type": "cpu", "warnings": []},
            "operators": [*OPERATORS, "vllm::other"],
        },
    }
    return {**answer, **changes}


@dataclass
class MemoryImages:
    """An engine with one image."""

    disk: Disk = field(default_factory=good_disk)
    image: ImageFacts = field(default_factory=good_facts)
    run: OneRun = field(default_factory=lambda: OneRun(0, MARK + json.dumps(good_answer()) + "\n", ""))
    cut: int | None = None
    """Bytes of the export after which the stream stops."""

    def change(self, **values: Any) -> None:
        """Change the configuration."""
        self.image = replace(self.image, **values)

    def answers(self, **changes: Any) -> None:
        """Change what the load script says."""
        self.run = OneRun(0, MARK + json.dumps(good_answer(**changes)) + "\n", "")

    def facts(self, image: str) -> ImageFacts:
        """Return the configuration."""
        return self.image

    @contextlib.contextmanager
    def export(self, image: str) -> Iterator[Iterable[bytes]]:
        """Give the disk in blocks of an odd size."""
        data = self.disk.tar()[: self.cut]
        yield (data[at : at + 777] for at in range(0, len(data), 777))

    def run_once(self, image: str, argv: tuple[str, ...], *, timeout: float) -> OneRun:
        """Return the prepared answer."""
        return self.run
