"""Inspect against a real engine: a small image with a real Python, real libraries and a real extension."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound

from seatrial.model.errors import UsageError
from seatrial.model.expectation import Allowance
from seatrial.model.report import Case, Outcome, Report
from seatrial.ports.console import Console
from seatrial.ports.engine_layout import loaded_layout
from seatrial.ports.images import OWNER_LABEL, DockerImages
from seatrial.stages.inspect import CASES, inspect_image
from tests.imagemaker import SITE, Disk, good_expectation, good_labels, loader_cache, records_of

pytestmark = pytest.mark.engine

PYTHON = "/opt/python"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
EXTENSION = "vllm/_csv.abi3.so"
LEFT_OUT = (
    "test",
    "idlelib",
    "tkinter",
    "lib2to3",
    "ensurepip",
    "pydoc_data",
    "site-packages",
    "turtledemo",
    "__pycache__",
)
TORCH = b"""
__version__ = "2.13.0"
class _C:
    @staticmethod
    def _dispatch_get_all_op_names():
        return ["aten::one"]
"""
PLATFORMS = b"""
class CpuPlatform:
    device_type = "cpu"
    def import_kernels(self):
        import vllm._csv
current_platform = CpuPlatform()
"""


def libraries(path: Path) -> dict[str, Path]:
    """Return what this machine's loader finds for a file: soname to path."""
    out = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
    found = re.findall(r"^\s*(\S+) => (/\S+) \(|^\s*(/\S+/ld-linux\S+) \(", out, re.MULTILINE)
    return {(name or posix.rsplit("/", 1)[1]): Path(where or posix) for name, where, posix in found}


@pytest.fixture(scope="module")
def disk() -> Disk:
    """Return a root file system with this interpreter, its libraries and stand-ins for torch and vLLM."""
    disk = Disk()
    disk.folders = {"/tmp": 0o1777, "/home/vllm": 0o1777, "/opt": 0o755}
    disk.links = {"/lib": "usr/lib", "/lib64": "usr/lib64", "/opt/vllm/bin/python3": f"{PYTHON}/bin/python3"}
    disk.add("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
    binary = Path(os.path.realpath(sys.executable))
    disk.add(f"{PYTHON}/bin/python3", binary.read_bytes(), 0o755)
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    natives = [binary]
    for path in sorted(stdlib.rglob("*")):
        inside = path.relative_to(stdlib)
        if inside.parts[0] in LEFT_OUT or "__pycache__" in inside.parts or not path.is_file():
            continue
        if path.suffix == ".py" or (
            path.suffix == ".so"
            and path.stem.split(".")[0]
            in (
                "_csv",
                "_json",
                "_struct",
                "_posixsubprocess",
                "_random",
                "math",
                "select",
                "_socket",
                "zlib",
                "_opcode",
            )
        ):
            disk.add(f"{PYTHON}/lib/{stdlib.name}/{inside}", path.read_bytes())
            natives += [path] if path.suffix == ".so" else []
    needed = {name: where for native in natives for name, where in libraries(native).items()}
    loader = next(name for name in needed if name.startswith("ld-linux"))
    disk.add(f"/usr/lib64/{loader}", needed.pop(loader).read_bytes(), 0o755)
    for name, where in needed.items():
        disk.add(f"{LIBRARIES}/{name}", where.read_bytes())
    disk.add("/etc/ld.so.cache", loader_cache([f"{LIBRARIES}/{name}" for name in needed]))
    disk.add("/opt/vllm/pyvenv.cfg", f"home = {PYTHON}/bin\ninclude-system-site-packages = false\nversion = 3.11.0\n")
    disk.add("/opt/vllm/bin/vllm", "#!/opt/vllm/bin/python3\nimport vllm\n", 0o755)
    csv = next(stdlib.glob("lib-dynload/_csv.*.so"))
    disk.install("torch", "2.13.0", {"torch/__init__.py": TORCH})
    disk.install("filelock", "3.16.1", {"filelock/__init__.py": b""})
    disk.install(
        "vllm",
        "0.28.0+cpu.st1",
        {
            "vllm/__init__.py": b"",
            "vllm/logger.py": b"",
            "vllm/model.py": b"# patched\n",
            "vllm/_version.py": b"version = '0.28.0'\n",
            "vllm/platforms.py": PLATFORMS,
            EXTENSION: csv.read_bytes(),
        },
        ["torch==2.13.0"],
    )
    RECORDS.update(records_of(disk))
    return disk


CONFIGURATION = (
    "USER 10001:10001",
    "ENV PATH=/opt/vllm/bin:/usr/bin HOME=/home/vllm VLLM_ROW=1 TORCHDYNAMO_DISABLE=1",
    'ENTRYPOINT ["vllm","serve"]',
    'HEALTHCHECK CMD ["/opt/vllm/bin/python3","-c","pass"]',
    "STOPSIGNAL SIGTERM",
    "WORKDIR /home/vllm",
    *(f"LABEL {name}={value}" for name, value in good_labels().items()),
)

Load = Callable[..., str]
RECORDS: dict[str, str] = {}
"""Digests over the RECORDs that the fixture's distributions were installed with."""


@pytest.fixture
def load(client: docker.DockerClient) -> Iterator[Load]:
    made: list[str] = []

    def load(disk: Disk, *more: str) -> str:
        answer = client.api.import_image_from_data(disk.tar(), changes=[*CONFIGURATION, *more])
        made.append(json.loads(answer.strip().splitlines()[-1])["status"])
        return made[-1]

    yield load
    for image in made:
        with contextlib.suppress(ImageNotFound):
            client.images.remove(image, force=True)


def changed(disk: Disk, **files: bytes) -> Disk:
    return Disk(
        {**disk.files, **{f"{SITE}/{EXTENSION}": (data, 0o644) for data in files.values()}}, disk.folders, disk.links
    )


def inspected(client: docker.DockerClient, image: str, **changes: object) -> Report:
    machine_python = Allowance(check="leftovers", pattern=f"{PYTHON}/*", why="the interpreter of this machine as it is")
    values = {
        "records": dict(RECORDS),
        "operators": {"vllm._csv": ()},
        "over_wheels_mb": 200,
        "allowances": (machine_python,),
        **changes,
    }
    return inspect_image(image, good_expectation(**values), DockerImages(client), Console(out=io.StringIO(), ci=False))


def case_of(report: Report, name: str) -> Case:
    return next(case for case in report.cases if case.name == name)


def left_containers(client: docker.DockerClient) -> list[str]:
    mine = {"label": f"{OWNER_LABEL}={os.getpid()}"}
    return [str(one.id) for one in client.containers.list(all=True, filters=mine)]


def test_a_good_image_passes_in_a_real_engine(client: docker.DockerClient, disk: Disk, load: Load) -> None:
    image = load(disk)
    report = inspected(client, image)
    trouble = {case.name: case.measured.get("problems", case.reason) for case in report.bad}
    # vLLM's operators stand in `_C`, which this stand-in has not.
    assert trouble == {"extensions": ["none of the builds of vLLM's operators can be used on this host"]}
    assert tuple(case.name for case in report.cases) == CASES
    assert report.subject == image
    extensions = case_of(report, "extensions").measured
    assert extensions["operators"] == {"vllm._csv": []}
    assert extensions["platform"] == {"platform": "CpuPlatform", "device_type": "cpu", "warnings": []}
    assert case_of(report, "run-contract").measured["health"] == ["CMD", "/opt/vllm/bin/python3", "-c", "pass"]
    assert left_containers(client) == []


def test_an_extension_that_is_no_library_is_red_where_it_is_loaded(
    client: docker.DockerClient, disk: Disk, load: Load
) -> None:
    report = inspected(client, load(changed(disk, extension=b"not a library")))
    assert "vllm._csv does not load: ImportError" in case_of(report, "extensions").reason
    assert f"{EXTENSION} differs from the RECORD" in case_of(report, "vllm-record").reason


def test_a_library_taken_out_is_red_on_paper_and_when_loaded(
    client: docker.DockerClient, disk: Disk, load: Load
) -> None:
    name = next(path for path in disk.files if path.startswith(f"{LIBRARIES}/libm.so"))
    report = inspected(client, load(Disk({k: v for k, v in disk.files.items() if k != name}, disk.folders, disk.links)))
    assert "needs libm.so.6" in case_of(report, "native-closure").reason
    assert "libm.so.6" in case_of(report, "extensions").reason


def test_the_configuration_is_read_as_the_engine_has_it(client: docker.DockerClient, disk: Disk, load: Load) -> None:
    report = inspected(
        client, load(disk, "USER 0", "ENV HTTPS_PROXY=http://proxy.test:1", "LABEL org.seatrial.fixes=none")
    )
    assert "runs as root" in case_of(report, "run-contract").reason
    assert "HTTPS_PROXY holds the build's proxy" in case_of(report, "secrets").reason
    assert "org.seatrial.fixes says 'none'" in case_of(report, "labels").reason


def test_a_run_has_no_network_and_ends_at_its_limit(client: docker.DockerClient, disk: Disk, load: Load) -> None:
    images, image = DockerImages(client), load(disk)
    seen = images.run_once(
        image, ("python3", "-c", "import os; print(sorted(os.listdir('/sys/class/net')))"), timeout=60
    )
    assert (seen.status, seen.stdout.strip()) == (0, "['lo']")
    late = images.run_once(image, ("python3", "-c", "print('up', flush=True); import time; time.sleep(600)"), timeout=5)
    assert late.status is None
    assert late.stdout.strip() == "up"
    assert left_containers(client) == []


def test_what_a_killed_run_left_is_cleared_by_the_next(client: docker.DockerClient, disk: Disk, load: Load) -> None:
    image = load(disk)
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = client.containers.create(image, labels={OWNER_LABEL: str(ended.pid)})
    with DockerImages(client).export(image) as chunks:
        assert next(iter(chunks))
    assert left.id not in [one.id for one in client.containers.list(all=True)]


def test_an_unknown_image_is_a_mistake_of_the_user(client: docker.DockerClient) -> None:
    with pytest.raises(UsageError, match="the engine holds no image"):
        inspected(client, "sha256:" + "0" * 64)
    with pytest.raises(ImageNotFound):
        client.images.get("sha256:" + "0" * 64)


def test_an_image_without_expectation_is_looked_at_and_not_passed(
    client: docker.DockerClient, disk: Disk, load: Load
) -> None:
    report = inspect_image(load(disk), None, DockerImages(client), Console(out=io.StringIO(), ci=False))
    not_run = {case.name for case in report.bad if case.outcome is Outcome.NOT_RUN}
    assert not_run == {"distributions", "locked-files", "version", "patched-files", "labels", "environment", "size"}
    assert (report.base, report.platform) == ("0.28.0", "unknown")


def test_the_layers_are_read_as_the_engine_saves_them(client: docker.DockerClient, disk: Disk, load: Load) -> None:
    """Both packings: what `docker import` makes, and a layer above that covers and deletes files of it."""
    lower = load(
        Disk({**disk.files, "/root/.netrc": (b"machine a login b password c", 0o600)}, disk.folders, disk.links)
    )
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        text = f"FROM {lower}\nUSER 0\nCOPY gone /root/.netrc\n".encode()
        for name, data in (("Dockerfile", text), ("gone", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    context.seek(0)
    image = str(client.images.build(fileobj=context, custom_context=True, network_mode="none")[0].id)
    try:
        case = case_of(inspected(client, image), "layers")
        assert "layer 1 of 2 still has what a later one hides: /root/.netrc holds logins" in case.reason
        assert case_of(inspected(client, image), "secrets").outcome is Outcome.PASSED
    finally:
        client.api.remove_image(image, noprune=True, force=True)


def test_a_shell_that_a_global_preload_breaks_is_red(client: docker.DockerClient, disk: Disk, load: Load) -> None:
    bash = Path("/bin/bash")
    held = {f"{LIBRARIES}/{name}": (where.read_bytes(), 0o644) for name, where in libraries(bash).items()}
    files = {**held, **disk.files, "/usr/bin/bash": (bash.read_bytes(), 0o755)}
    with_shell = Disk(files, disk.folders, {**disk.links, "/bin": "usr/bin"})
    good = case_of(inspected(client, load(with_shell)), "shell")
    assert good.measured["shell"] == "/bin/bash"
    assert "env" in good.reason or good.outcome is Outcome.PASSED
    bad = case_of(inspected(client, load(with_shell, "ENV LD_PRELOAD=/nowhere.so")), "shell")
    assert any("cannot be preloaded" in line for line in bad.measured["problems"])


def test_a_layout_is_lent_without_a_name_and_taken_away_again(
    client: docker.DockerClient, disk: Disk, load: Load, tmp_path: Path
) -> None:
    image = load(disk)
    client.api.tag(image, "seatrial-test/layout", "latest")
    archive = tmp_path / "layout.tar"
    with archive.open("wb") as stream:
        for block in client.api.get_image("seatrial-test/layout:latest"):
            stream.write(block)
    client.api.remove_image("seatrial-test/layout:latest", noprune=True)
    with contextlib.suppress(ImageNotFound):  # gone with its last name, or still there without one
        client.api.remove_image(image, noprune=True, force=True)
    with loaded_layout(client, archive) as lent:
        assert client.api.inspect_image(lent)["RepoTags"] == []
        assert case_of(inspected(client, lent), "version").outcome is Outcome.PASSED
    with pytest.raises(ImageNotFound):
        client.images.get(lent)
