"""What packages were built for: one accelerator, one set of siblings, one chip."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from seatrial.ports.elf import Elf
from seatrial.stages.inspect.environment import MACHINES
from seatrial.stages.inspect.subject import Found, Image

NEEDS = (
    ("cuda", re.compile(r"^lib(?:cudart|cuda|torch_cuda|c10_cuda|cublas|nvrtc)(?:-|\.so)")),
    ("rocm", re.compile(r"^lib(?:amdhip64|torch_hip|c10_hip|hipblas|rocblas)(?:-|\.so)")),
    ("xpu", re.compile(r"^lib(?:sycl|torch_xpu|c10_xpu|ze_loader)(?:-|\.so)")),
)
"""Libraries that only a build for an accelerator needs."""

SAID = (
    ("cpu", re.compile(r"(?:^|[.+])cpu(?:$|\.)")),
    ("cuda", re.compile(r"(?:^|[.+])cu(?:da)?\.?\d*(?:$|\.)")),
    ("rocm", re.compile(r"(?:^|[.+])(?:rocm|hip)")),
    ("xpu", re.compile(r"(?:^|[.+])xpu")),
)
"""Local parts of versions that name an accelerator."""

_CUDART = re.compile(r"^libcudart\.so\.(\d+)")

EQUAL = (
    (
        ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),
        "flashinfer refuses to start beside kernels of another version",
    ),
    (("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base"), "the front end calls functions of exactly this library"),
    (("ray", "ray-cpp"), "both speak one protocol"),
)
"""Distributions that have to have the same version, and why, although not all of them say it in their metadata."""

TORCH_FAMILY = ("torchvision", "torchaudio", "torchcodec")
"""Packages with extensions that are built on one torch: same accelerator, same CUDA."""

ONE_ARCH = ("GPU_ARCHS", "PYTORCH_ROCM_ARCH", "HIP_ARCHITECTURES", "AMDGPU_TARGETS", "GPU_TARGETS")
"""Variables of a ROCm build from which kernels' packages choose formats again at run time."""

PRETENDS = ("HSA_OVERRIDE_GFX_VERSION", "FLASH_ATTENTION_FORCE_BUILD_ARCH")
"""Variables that make a chip pass for another."""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """What `torch/version.py` says."""

    version: str
    kinds: frozenset[str]
    cuda: str


def kinds_needed(natives: dict[str, Elf]) -> dict[str, str]:
    """Return accelerator to one `file: library` that shows the need."""
    found: dict[str, str] = {}
    for path, elf in sorted(natives.items()):
        for name in elf.needed:
            for kind, pattern in NEEDS:
                if pattern.match(name):
                    found.setdefault(kind, f"{path} needs {name}")
    return found


def kind_said(version: str) -> str:
    """Return the accelerator that a version's local part names, empty when it names none."""
    local = version.partition("+")[2]
    return next((kind for kind, pattern in SAID if local and pattern.search(local)), "")


def kind_faults(version: str, needed: dict[str, str], device: str) -> Iterator[str]:
    """Yield where version, native files and the platform's device do not name one accelerator."""
    said = kind_said(version)
    for kind, why in sorted(needed.items()):
        if said and kind != said:
            yield f"vllm {version} says it is built for {said}, and {why}: that is a build for {kind}"
        elif device and kind != device:
            yield f"{why}: that is a build for {kind}, and the platform's device is {device}"
    if said in ("cuda", "rocm", "xpu") and said not in needed:
        yield f"vllm {version} says it is built for {said}, and none of its native files needs a library of {said}"
    if device and said and said != device:
        yield f"vllm {version} is a build for {said}, and the platform's device is {device}"
    elif device not in ("", "cpu") and not needed:
        yield f"the platform's device is {device}, and no native file of vllm {version} needs a library of {device}"


def check_accelerator(image: Image) -> Found:
    """Check that vLLM, torch and the platform are built for one accelerator."""
    vllm = image.python.vllm
    if vllm is None:
        return Found(("no distribution in the image brings vllm/",))
    natives = _natives(image)
    needed = kinds_needed(natives)
    device = image.expected.device if image.expected else ""
    problems = list(kind_faults(vllm.version, needed, device))
    machine = MACHINES.get(image.facts.machine, image.facts.machine)
    if image.expected is not None and machine != image.expected.machine:
        problems.append(f"the image is for {machine}, and the platform's machine is {image.expected.machine}")
    torch = torch_build(image)
    if torch is not None:
        problems += _torch_faults(torch, needed, natives)
    measured = {
        "needs": needed,
        "said": kind_said(vllm.version),
        "device": device,
        "torch": None
        if torch is None
        else {"version": torch.version, "kinds": sorted(torch.kinds), "cuda": torch.cuda},
    }
    return Found(tuple(problems), measured)


def check_siblings(image: Image) -> Found:
    """Check that distributions which are released together are of one release and one build."""
    python = image.python
    excused = image.excused("siblings")
    problems: list[str] = []
    compared: list[str] = []
    for names, why in EQUAL:
        found = {name: one.version for name in names if (one := python.named(canonicalize_name(name))) is not None}
        compared += found if len(found) > 1 else {}
        if len({_public(version) for version in found.values()}) > 1 and not excused.allows(", ".join(found)):
            listed = ", ".join(f"{name} {version}" for name, version in found.items())
            problems.append(f"{listed}: {why}")
    torch = torch_build(image)
    for name in TORCH_FAMILY:
        one = python.named(canonicalize_name(name))
        if one is None or torch is None:
            continue
        compared.append(name)
        cuda = _assigned(image.root.text(f"{one.site}/{name}/version.py") or "", "cuda")
        kind = kind_said(one.version) or ("cuda" if cuda else "")
        if excused.allows(name):
            continue
        if kind and kind not in torch.kinds | {"cpu"}:
            problems.append(f"{name} {one.version} is built for {kind}, torch {torch.version} for {_kinds(torch)}")
        elif cuda and torch.cuda and cuda != torch.cuda:
            problems.append(f"{name} {one.version} is built on CUDA {cuda}, torch {torch.version} on CUDA {torch.cuda}")
        problems += [
            f"{name} {one.version} is built on torch {spec.version}, and torch {torch.version} is installed"
            for need in one.requirements
            if canonicalize_name(need.name) == "torch"
            for spec in need.specifier
            if spec.operator == "==" and "*" not in spec.version and _public(spec.version) != _public(torch.version)
        ]
    return Found(tuple(problems), {"compared": compared, **excused.measured()})


def check_arch_variables(image: Image) -> Found:
    """Check that no variable makes a kernel library take the chip for another one."""
    problems: list[str] = []
    for name in ONE_ARCH:
        arches = [word for word in re.split(r"[;,\s]+", image.facts.environment.get(name, "")) if word]
        if len(arches) > 1:
            problems.append(
                f"variable {name} names {len(arches)} chips ({', '.join(arches)}); at run time the first decides the "
                "FP8 format for all"
            )
    problems += [
        f"variable {name} is set ({image.facts.environment[name]}): kernels are chosen for a chip that is not there"
        for name in PRETENDS
        if image.facts.environment.get(name)
    ]
    return Found(tuple(problems), {"looked_for": [*ONE_ARCH, *PRETENDS]})


def accelerators(image: Image) -> frozenset[str]:
    """Return what the image computes on: the platform's device, or else what vLLM's native files were built for."""
    if image.expected is not None:
        return frozenset({image.expected.device})
    return frozenset(kinds_needed(_natives(image)) or {"cpu"})


def _natives(image: Image) -> dict[str, Elf]:
    """Return vLLM's native files, by their path below the site folder."""
    vllm = image.python.vllm
    if vllm is None:
        return {}
    prefix = f"{vllm.site}/"
    return {
        entry.path.removeprefix(prefix): entry.elf
        for entry in image.root.files()
        if entry.elf is not None and entry.path.startswith(f"{prefix}vllm/")
    }


def torch_build(image: Image) -> TorchBuild | None:
    """Return what torch says of its own build, None without torch or its version file."""
    torch = image.python.named(canonicalize_name("torch"))
    text = image.root.text(f"{torch.site}/torch/version.py") if torch is not None else None
    if torch is None or text is None:
        return None
    fields = {"cuda": "cuda", "rocm": "hip", "xpu": "xpu"}
    kinds = {kind for kind, name in fields.items() if _assigned(text, name)}
    return TorchBuild(_assigned(text, "__version__") or torch.version, frozenset(kinds), _assigned(text, "cuda") or "")


def _torch_faults(torch: TorchBuild, needed: dict[str, str], natives: dict[str, Elf]) -> Iterator[str]:
    for kind, why in sorted(needed.items()):
        if kind not in torch.kinds:
            yield f"{why}, and torch {torch.version} is built for {_kinds(torch)}"
    said = kind_said(torch.version)
    if said and said != "cpu" and said not in torch.kinds:
        yield f"torch calls itself {torch.version} and is built for {_kinds(torch)}"
    majors = {m[1] for elf in natives.values() for name in elf.needed if (m := _CUDART.match(name))}
    own = torch.cuda.partition(".")[0]
    for major in sorted(majors - {own}) if own else ():
        yield f"vLLM needs CUDA {major}'s libcudart, and torch {torch.version} is built on CUDA {torch.cuda}"


def _kinds(torch: TorchBuild) -> str:
    return " and ".join(sorted(torch.kinds)) or "the CPU alone"


def _public(version: str) -> str:
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def _assigned(text: str, name: str) -> str:
    match = re.search(rf"(?m)^{name}(?:\s*:[^=\n]+)?\s*=\s*(['\"])(?P<value>.*?)\1", text)
    return match["value"] if match else ""
