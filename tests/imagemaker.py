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

from seatrial.model.expectation import Expectation, recorded_digest
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
    wants: Iterable[str] = (),
    brings: Iterable[str] = (),
    asks: Iterable[tuple[str, str]] = (),
    defines: Iterable[str] = (),
) -> bytes:
    """Return a 64-bit little-endian ELF file with a dynamic section and, where asked for, symbols.

    Args:
        wants: undefined symbols.
        brings: defined ones.
        asks: pairs of library and symbol version that it needs.
        defines: symbol versions that it has.
    """
    strings = bytearray(b"\0")

    def text(value: str) -> int:
        at = len(strings)
        strings.extend(value.encode() + b"\0")
        return at

    symbols = [(text(name), 0x12, 0) for name in wants] + [(text(name), 0x12, 1) for name in brings]
    needs = [(text(library), text(version)) for library, version in asks]
    has = [text(version) for version in defines]
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
    tables = _symbol_tables(end, (strings_at, len(strings)), symbols, needs, has) if symbols or needs or has else None
    sections = (tables[0], 64, 6, 5) if tables else (0, 0, 0, 0)
    start = ident + struct.pack("<2HI3QI6H", kind, machine, 1, 0, 64, sections[0], 0, 64, 56, segments, *sections[1:])
    return start + headers + bytes(strings) + spelled + dynamic + (tables[1] if tables else b"")


def _symbol_tables(
    at: int, strings: tuple[int, int], symbols: list[tuple[int, int, int]], needs: list[tuple[int, int]], has: list[int]
) -> tuple[int, bytes]:
    """Return where the section headers stand, and the bytes of symbols, versions and headers that follow at `at`."""
    table = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", name, info, 0, section, 0, 0) for name, info, section in symbols
    )
    needed = b"".join(
        struct.pack("<HHIII", 1, 1, library, 16, 32 * (number < len(needs)))
        + struct.pack("<IHHII", 0, 0, 2, version, 0)
        for number, (library, version) in enumerate(needs, start=1)
    )
    defined = b"".join(
        struct.pack("<HHHHIII", 1, 0, number, 1, 0, 20, 28 * (number < len(has))) + struct.pack("<II", version, 0)
        for number, version in enumerate(has, start=1)
    )
    names = b"\0.dynstr\0.dynsym\0.gnu.version_r\0.gnu.version_d\0.shstrtab\0"
    body, headers = b"", bytes(64)
    rows = ((b".dynsym", 11, table, 0, 24), (b".gnu.version_r", 0x6FFFFFFE, needed, len(needs), 0))
    rows += ((b".gnu.version_d", 0x6FFFFFFD, defined, len(has), 0), (b".shstrtab", 3, names, 0, 0))
    headers += struct.pack("<2I4Q2I2Q", names.index(b".dynstr"), 3, 0, 0, *strings, 0, 0, 1, 0)
    for name, kind, data, info, size in rows:
        place = (at + len(body), len(data))
        headers += struct.pack("<2I4Q2I2Q", names.index(name), kind, 0, 0, *place, 1, info, 8, size)
        body += data
    return at + len(body), body + headers


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

C10 = "_ZN3c105ErrorC1Ev"
"""A symbol of torch's base library: `c10::Error::Error()`."""

WRAPPERS = b"""
import torch
def one(x): return torch.ops._C.one(x)
def only_there(x): return torch.ops._C.on_a_gpu(x)
"""

CALLER = b"""
import torch
from vllm import _custom_ops as ops
def run(x):
    if hasattr(torch.ops._C, "perhaps"):
        torch.ops._C.perhaps(x)
    return torch.ops._C.two(ops.one(x))
"""


def good_disk() -> Disk:
    """Return the disk of an image that nothing is wrong with."""
    disk = Disk()
    disk.folders = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/home/vllm": 0o1777, "/opt": 0o755}
    disk.links = {"/lib": "usr/lib", "/lib64": "usr/lib64", "/opt/vllm/bin/python3": "/usr/bin/python3.11"}
    disk.add("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nvllm:x:10001:10001::/home/vllm:/bin/bash\n")
    disk.add("/usr/lib64/ld-linux-x86-64.so.2", elf_bytes(soname="ld-linux-x86-64.so.2"), 0o755)
    disk.add(f"{SYSTEM}/libnuma.so.1", elf_bytes(soname="libnuma.so.1"))
    disk.add(
        f"{SYSTEM}/libc.so.6", elf_bytes(soname="libc.so.6", brings=["malloc"], defines=["GLIBC_2.28", "GLIBC_2.36"])
    )
    disk.add("/bin/bash", elf_bytes(["libc.so.6"], interpreter="/lib64/ld-linux-x86-64.so.2"), 0o755)
    disk.add("/etc/ld.so.cache", loader_cache([f"/lib/x86_64-linux-gnu/{n}" for n in ("libc.so.6", "libnuma.so.1")]))
    interpreter = elf_bytes(
        ["libc.so.6"], interpreter="/lib64/ld-linux-x86-64.so.2", brings=["PyModule_Create2"], wants=["malloc"]
    )
    disk.add("/usr/bin/python3.11", interpreter, 0o755)
    disk.add("/usr/bin/passwd", b"x", 0o4755)
    disk.add("/opt/vllm/bin/vllm", "#!/opt/vllm/bin/python3\nimport vllm\n", 0o755)
    disk.add("/opt/vllm/pyvenv.cfg", "home = /usr/bin\nversion_info = 3.11.2\ninclude-system-site-packages = false\n")
    disk.install(
        "torch",
        "2.13.0",
        {
            "torch/__init__.py": b"",
            "torch/version.py": b"__version__ = '2.13.0+cpu'\ncuda: str | None = None\nhip = None\nxpu = None\n",
            "torch/_C.cpython-311-x86_64-linux-gnu.so": elf_bytes(["libtorch.so", "libc.so.6"], runpath="$ORIGIN/lib"),
            "torch/lib/libtorch.so": elf_bytes(["libc10.so"], soname="libtorch.so", rpath="$ORIGIN"),
            "torch/lib/libc10.so": elf_bytes(["libc.so.6"], soname="libc10.so", brings=[C10]),
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
            "vllm/_custom_ops.py": WRAPPERS,
            "vllm/v1/cpu_attn.py": CALLER,
            "vllm/_C.abi3.so": elf_bytes(
                ["libc10.so", "libtorch.so", "libnuma.so.1", "libc.so.6"],
                wants=[C10, "PyModule_Create2", "malloc"],
                asks=[("libc.so.6", "GLIBC_2.28")],
            ),
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
        environment={
            "PATH": "/opt/vllm/bin:/usr/bin",
            "HOME": "/home/vllm",
            "VLLM_ROW": "1",
            "TORCHDYNAMO_DISABLE": "1",
        },
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


def good_records() -> dict[str, str]:
    """Return the digests of the good image's RECORDs, from its wheels so to say."""
    return records_of(good_disk())


def records_of(disk: Disk) -> dict[str, str]:
    """Return the digest over each RECORD of a disk, by distribution."""
    found: dict[str, str] = {}
    for path, (data, _) in disk.files.items():
        if path.endswith(".dist-info/RECORD"):
            rows = [line.split(",") for line in data.decode().splitlines()]
            name = path.split("/")[-2].split("-")[0].replace("_", "-")
            found[name] = recorded_digest((row[0], row[1].removeprefix("sha256=")) for row in rows)
    return found


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
        "environment": {"VLLM_ROW": "1", "TORCHDYNAMO_DISABLE": "1"},
        "records": good_records(),
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


def saved(layers: Iterable[bytes]) -> bytes:
    """Return an image archive with these layers, the lowest first."""
    blobs = {f"blobs/sha256/{hashlib.sha256(data).hexdigest()}": data for data in layers}
    blobs["blobs/sha256/config"] = b'{"architecture": "amd64"}'
    blobs["manifest.json"] = json.dumps([{"Layers": list(blobs)[:-1], "Config": "blobs/sha256/config"}]).encode()
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name, data in blobs.items():
            member = _member(name, tarfile.REGTYPE, 0o644)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return target.getvalue()


@dataclass
class MemoryImages:
    """An engine with one image."""

    disk: Disk = field(default_factory=good_disk)
    image: ImageFacts = field(default_factory=good_facts)
    run: OneRun = field(default_factory=lambda: OneRun(0, MARK + json.dumps(good_answer()) + "\n", ""))
    shell: OneRun | None = None
    """How a shell ends; none: as it should."""
    below: list[bytes] = field(default_factory=list)
    """Tar files of the layers under the disk's, the lowest first."""
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

    @contextlib.contextmanager
    def archive(self, image: str) -> Iterator[Iterable[bytes]]:
        """Give an archive as `docker save` writes it: the layers below, then the disk as the topmost."""
        data = saved([*self.below, self.disk.tar()])
        yield (data[at : at + 777] for at in range(0, len(data), 777))

    def run_once(self, image: str, argv: tuple[str, ...], *, timeout: float) -> OneRun:
        """Return the prepared answer, or what a shell would print."""
        if not argv[0].endswith("sh"):
            return self.run
        variables = "".join(f"{name}={value}\n" for name, value in self.image.environment.items())
        return self.shell or OneRun(0, f"{variables}PWD=/\n", "")
