"""Kernels: those that were compiled ahead are there, and what is compiled at run time finds its tools."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from packaging.utils import canonicalize_name

from seatrial.ports.rootfs import Entry
from seatrial.stages.inspect.builds import accelerators
from seatrial.stages.inspect.subject import Found, Image

GPUS = frozenset({"cuda", "rocm", "xpu"})


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a compilation at run time looks for: any one of the patterns."""

    what: str
    patterns: tuple[str, ...]
    """Shell patterns over absolute paths; `{site}` is the package's folder and `{python}` the version, 3.11."""


@dataclass(frozen=True, slots=True)
class Jit:
    """A package that compiles while it serves."""

    name: str
    distributions: tuple[str, ...]
    """Any of them brings it."""
    devices: frozenset[str]
    """Accelerators of torch with which it compiles."""
    needs: tuple[Need, ...]
    why: str
    off: Callable[[Image], bool] = lambda image: False
    """Tell whether the image switches it off, or brings everything compiled."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A package whose kernels were compiled ahead, and where they lie."""

    distributions: tuple[str, ...]
    folder: str
    """Below the site folder; a package without this folder has another form, and the row says nothing of it."""
    kernels: tuple[str, ...]
    """Shell patterns of kernel files, over the path below the folder."""
    devices: frozenset[str] = GPUS


def _switched(name: str, value: str) -> Callable[[Image], bool]:
    return lambda image: image.facts.environment.get(name) == value


def _beside(name: str) -> Callable[[Image], bool]:
    return lambda image: image.python.named(canonicalize_name(name)) is not None


_C_COMPILER = Need("a C compiler", ("*/bin/gcc", "*/bin/cc", "*/bin/clang", "*/bin/*-linux-gnu-gcc*"))
_CXX_COMPILER = Need("a C++ compiler", ("*/bin/g++", "*/bin/c++", "*/bin/clang++"))
_PYTHON_H = Need("Python's headers", ("*/include/python{python}/Python.h",))
_LIBC_H = Need("the C library's headers", ("/usr/include/stdio.h", "/usr/*/include/stdio.h"))
_CXX_H = Need("the C++ library's headers", ("/usr/include/c++/*/vector", "*/include/c++/*/vector"))
_NVCC = Need("nvcc", ("*/bin/nvcc",))
_NINJA = Need("ninja", ("*/bin/ninja",))
_CUDA_H = Need("CUDA's headers", ("*/include/cuda_runtime.h",))

JITS = (
    Jit(
        "inductor",
        ("torch",),
        frozenset({"cpu"}),
        (_CXX_COMPILER, _CXX_H, _PYTHON_H),
        "torch.compile writes C++ for a CPU, at start and at the first request that asks for logprobs",
        _switched("TORCHDYNAMO_DISABLE", "1"),
    ),
    Jit(
        "triton",
        ("triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-rocm", "triton-xpu"),
        GPUS,
        (_C_COMPILER, _LIBC_H, _PYTHON_H),
        "triton compiles a launcher in C for each kernel",
    ),
    Jit(
        "ptxas",
        ("triton",),
        frozenset({"cuda"}),
        (Need("ptxas", ("{site}/triton/backends/nvidia/bin/ptxas*", "*/bin/ptxas")),),
        "triton assembles its kernels with it",
    ),
    Jit(
        "flashinfer",
        ("flashinfer-python",),
        frozenset({"cuda"}),
        (
            _NVCC,
            _NINJA,
            _CXX_COMPILER,
            _CUDA_H,
            Need("cuBLAS's headers", ("*/include/cublas_v2.h",)),
            Need("cuRAND's headers", ("*/include/curand_kernel.h",)),
        ),
        "flashinfer compiles each attention kernel when it is first asked for",
        _beside("flashinfer-jit-cache"),
    ),
    Jit(
        "deep-gemm",
        ("deep-gemm",),
        frozenset({"cuda"}),
        (_CUDA_H, Need("nvcc or NVRTC", ("*/bin/nvcc", "*/libnvrtc.so*")), Need("cuobjdump", ("*/bin/cuobjdump",))),
        "DeepGEMM compiles each shape of matrix when it first comes",
    ),
    Jit(
        "aiter",
        ("amd-aiter", "aiter"),
        frozenset({"rocm"}),
        (Need("hipcc", ("*/bin/hipcc",)), _NINJA, Need("HIP's headers", ("*/include/hip/hip_runtime.h",))),
        "AITER compiles a module when it is first imported",
    ),
)
"""Packages that compile at run time and what they look for, as their own sources say."""

COMPILED = (
    Compiled(("flashinfer-jit-cache",), "flashinfer_jit_cache/jit_cache", ("*.so",)),
    Compiled(("flashinfer-cubin",), "flashinfer_cubin/cubins", ("*.cubin", "*.so")),
    Compiled(("flashinfer-python",), "flashinfer/data/aot", ("*.so",)),
    Compiled(("amd-aiter", "aiter"), "aiter_meta/hsa", ("*.co",)),
    Compiled(("vllm",), "vllm/vllm_flash_attn", ("*.so",), frozenset({"cuda"})),
    Compiled(("triton",), "triton/backends/nvidia/bin", ("ptxas*",), frozenset({"cuda"})),
)
"""Folders of kernels that an installer or a build step fills, or leaves empty without a word."""

_EMPTY_NAMES = re.compile(r"^(?:aot|aot-ops|jit|jit_cache|cubins?|hsaco|hsa|kernels?|lib|libs|csrc|fatbins?)$")


def check_jit(image: Image) -> Found:
    """Check that whatever compiles while it serves finds its compiler, headers and libraries in the image."""
    excused = image.excused("jit")
    kinds = accelerators(image)
    names = {entry.path for entry in image.root.entries.values() if entry.kind in ("file", "link")}
    problems: list[str] = []
    states: dict[str, str] = {}
    for rule in JITS:
        brings = next((one for n in rule.distributions if (one := image.python.named(canonicalize_name(n)))), None)
        if brings is None or not rule.devices & kinds:
            continue
        if rule.off(image):
            states[rule.name] = "off"
            continue
        lost = [need.what for need in rule.needs if not _found(image, names, need, brings.site)]
        states[rule.name] = "on"
        if lost and not excused.allows(rule.name):
            problems.append(f"{rule.why}, and the image lacks {', '.join(lost)}")
    return Found(tuple(problems), {"accelerators": sorted(kinds), "compilers": states, **excused.measured()})


def check_kernels(image: Image) -> Found:
    """Check that folders which hold kernels compiled ahead are not empty."""
    excused = image.excused("kernels")
    kinds = accelerators(image)
    problems: list[str] = []
    counts: dict[str, int] = {}
    for rule in COMPILED:
        one = next((d for n in rule.distributions if (d := image.python.named(canonicalize_name(n)))), None)
        if one is None or not rule.devices & kinds:
            continue
        folder = f"{one.site}/{rule.folder}"
        if image.root.at(folder) is None:
            continue
        found = [
            e for e in _below(image, folder) if e.size and any(fnmatchcase(e.path, f"*/{k}") for k in rule.kernels)
        ]
        counts[rule.folder] = len(found)
        if not found and not excused.allows(folder):
            problems.append(f"{folder} of {one.name} {one.version} holds no kernel ({', '.join(rule.kernels)})")
    filled = {folder for entry in image.root.entries.values() if entry.kind != "dir" for folder in _above(entry.path)}
    for entry in image.root.entries.values():
        inside = entry.path.startswith(tuple(f"{site}/" for site in image.python.sites))
        if not inside or excused.allows(entry.path):
            continue
        if entry.kind == "dir" and entry.path not in filled and _EMPTY_NAMES.match(posixpath.basename(entry.path)):
            problems.append(f"{entry.path} is empty: the step that should have filled it failed without a word")
        elif (
            entry.kind == "file"
            and not entry.size
            and not entry.first
            and entry.path.endswith((".so", ".cubin", ".co"))
        ):
            problems.append(f"{entry.path} has no bytes")
    return Found(tuple(problems), {"kernels": counts, **excused.measured()})


def _found(image: Image, names: set[str], need: Need, site: str) -> bool:
    version = image.python.markers.get("python_version", "")
    for raw in need.patterns:
        pattern = raw.replace("{site}", site).replace("{python}", version)
        if any(fnmatchcase(name, pattern) for name in names if name.endswith(_tail(pattern))):
            return True
    return False


def _tail(pattern: str) -> str:
    """Return the fixed end of a pattern, so that few of an image's paths are matched."""
    return re.split(r"[*?\[]", pattern)[-1]


def _below(image: Image, folder: str) -> Iterator[Entry]:
    return (entry for entry in image.root.files() if entry.path.startswith(f"{folder}/"))


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = posixpath.dirname(path)
        yield path
