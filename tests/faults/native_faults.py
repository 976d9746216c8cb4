"""Libraries, operators and architectures: what a native file needs, and what it is."""

from __future__ import annotations

from functools import partial

from tests.faults.derive import Layer
from tests.faults.elfedit import other_machine, renamed_need, renamed_path, renamed_symbol, renamed_version
from tests.faults.model import Fault
from tests.faults.seeds import (
    SITE,
    STDLIB,
    SYSTEM,
    both,
    gone,
    library_gone,
    mode,
    moved,
    native,
    not_in_wheel,
    uninstalled,
    written,
)

LOADER = "native-closure"
IMAGING = "PIL/_imaging.cpython-311-x86_64-linux-gnu.so"
ZMQ = "zmq/backend/cython/_zmq.cpython-311-x86_64-linux-gnu.so"
NUMPY = "numpy/_core/_multiarray_umath.cpython-311-x86_64-linux-gnu.so"
AVX2, AVX512, ALL = "vllm/_C_AVX2.abi3.so", "vllm/_C_AVX512.abi3.so", "vllm/_C.abi3.so"


def cudart(name: str, needs: str) -> Fault:
    """Let a native file need a CUDA runtime that the image does not hold."""
    return Fault(
        f"cudart-{name.rsplit('/', maxsplit=1)[-1].split('.', maxsplit=1)[0].lower()}",
        1,
        "library",
        LOADER,
        (name, "libcudart.so.13"),
        f"{name} is linked to a CUDA runtime that is not there",
        native(name, partial(renamed_need, old=needs, new="libcudart.so.13")),
    )


def library(soname: str) -> Fault:
    """Leave a system library out of the stage that ships."""
    return Fault(
        f"left-out-{soname.split('.so', maxsplit=1)[0]}",
        6,
        "library",
        LOADER,
        (soname, "no file of that name"),
        f"{soname} was installed in the tested stage alone",
        library_gone(soname),
    )


def undefined(name: str, part: str, row: int, what: str) -> Fault:
    """Let an extension use a symbol that nobody defines."""
    return Fault(
        f"undefined-{row}-{name.rsplit('/', maxsplit=1)[-1].split('.', maxsplit=1)[0].lower().strip('_')}",
        row,
        "op, ABI",
        "symbols",
        (name,),
        what,
        native(name, partial(renamed_symbol, part=part)),
    )


def empty_kernels(layer: Layer) -> None:
    """Ship a wheel whose kernel step failed silently: every build of the operators is missing."""
    for name in (ALL, AVX2, AVX512):
        layer.installed(name, None)


def slim(folder: str, owner: str) -> Fault:
    """Slim away headers that a compile at run time reads."""
    return Fault(
        f"slimmed-{folder.replace('/', '-')}",
        4,
        "library",
        "records",
        (folder, f"RECORD of {owner}", "missing"),
        f"the headers below {folder} were slimmed away",
        gone(f"{SITE}/{folder}"),
    )


LIBRARIES: tuple[Fault, ...] = (
    cudart("vllm/fs_io_C.abi3.so", "libtorch_cpu.so"),
    cudart("torch/lib/libtorchbind_test.so", "libtorch_cpu.so"),
    cudart("cv2/cv2.abi3.so", "libswscale-fe215b0b.so.9.5.101"),
    Fault(
        "loader-path-other-folder",
        2,
        "library",
        LOADER,
        ("libnuma.so.1", "/opt/runtime/lib", "does not look"),
        "libnuma lies in a folder that no path names",
        moved(f"{SYSTEM}/libnuma.so.1", "/opt/runtime/lib/libnuma.so.1"),
    ),
    Fault(
        "loader-path-stale-cache",
        2,
        "library",
        LOADER,
        ("libnuma.so.1", "/usr/local/runtime"),
        "ld.so.conf names libnuma's folder and ldconfig was not run",
        both(
            moved(f"{SYSTEM}/libnuma.so.1", "/usr/local/runtime/libnuma.so.1"),
            written("/etc/ld.so.conf.d/runtime.conf", "/usr/local/runtime\n"),
        ),
    ),
    Fault(
        "loader-path-rpath-pillow",
        2,
        "library",
        LOADER,
        (IMAGING, "where the loader does not look"),
        "the search path of pillow's extension names a folder that is not there",
        native(IMAGING, partial(renamed_path, old="pillow.libs", new="pillow.gone")),
    ),
    Fault(
        "loader-path-rpath-zmq",
        2,
        "library",
        LOADER,
        (ZMQ, "where the loader does not look"),
        "the search path of zmq's extension names a folder that is not there",
        native(ZMQ, partial(renamed_path, old="pyzmq.libs", new="pyzmq.gone")),
    ),
    slim("torch/include", "torch"),
    slim("tvm_ffi/include", "apache-tvm-ffi"),
    Fault(
        "slimmed-ninja",
        4,
        "library",
        "records",
        ("ninja", "missing"),
        "the program that a compile at run time starts was slimmed away",
        gone("/opt/vllm/bin/ninja"),
    ),
    Fault(
        "empty-kernels",
        5,
        "library",
        "extensions",
        ("vllm._C is one of the base's extensions", "not in the image"),
        "the wheel was built without one kernel",
        empty_kernels,
    ),
    Fault(
        "empty-kernel-file",
        5,
        "library",
        "extensions",
        ("vllm._C_AVX2 does not load", "too short"),
        "the wheel holds a kernel file of no bytes",
        native(AVX2, lambda data: b""),
    ),
    Fault(
        "empty-all-extensions",
        5,
        "library",
        "extensions",
        ("no vLLM extension",),
        "the wheel was built without any native code",
        not_in_wheel(ALL, AVX2, AVX512, "vllm/fs_io_C.abi3.so", "vllm/spinloop.abi3.so"),
    ),
    library("libnuma.so.1"),
    library("libssl.so.3"),
    library("libffi.so.8"),
    library("libsqlite3.so.0"),
    library("liblzma.so.5"),
    Fault(
        "left-out-libgomp",
        6,
        "library",
        LOADER,
        ("libgomp.so.1", "no file"),
        "torch's OpenMP is not in its wheel",
        not_in_wheel("torch/lib/libgomp.so.1"),
    ),
    Fault(
        "left-out-openblas",
        6,
        "library",
        LOADER,
        ("libscipy_openblas64_", "numpy"),
        "numpy's BLAS is not in its wheel",
        not_in_wheel("numpy.libs/libscipy_openblas64_-fdde5778.so"),
    ),
    Fault(
        "left-out-tvm-ffi",
        6,
        "library",
        LOADER,
        ("libtvm_ffi.so", "no file"),
        "the library that xgrammar binds to is not in its wheel",
        not_in_wheel("tvm_ffi/lib/libtvm_ffi.so"),
    ),
    Fault(
        "no-import-distribution",
        7,
        "library",
        "distributions",
        ("msgspec", "not installed"),
        "a distribution that vllm imports was not installed",
        uninstalled("msgspec"),
    ),
    Fault(
        "no-import-stdlib",
        7,
        "library",
        "extensions",
        ("asyncio",),
        "a part of Python's own library was slimmed away",
        gone(f"{STDLIB}/asyncio"),
    ),
    Fault(
        "no-import-ctypes",
        7,
        "library",
        "extensions",
        ("_ctypes",),
        "a native part of Python's own library was slimmed away",
        gone(f"{STDLIB}/lib-dynload/_ctypes.cpython-311-x86_64-linux-gnu.so"),
    ),
    Fault(
        "no-import-torch",
        7,
        "library",
        "extensions",
        ("torch does not import",),
        "torch was installed without its Python side's library",
        not_in_wheel("torch/lib/libtorch_python.so"),
    ),
)

OPERATORS: tuple[Fault, ...] = (
    Fault(
        "operators-missing",
        8,
        "op, ABI",
        "vllm-record",
        ("_C.abi3.so", "missing"),
        "_C was lost on the way into the image",
        gone(f"{SITE}/{ALL}"),
    ),
    Fault(
        "operators-truncated",
        8,
        "op, ABI",
        LOADER,
        (AVX2, "not a readable ELF file"),
        "a build of the operators was cut off while it was copied",
        lambda layer: layer.put(f"{SITE}/{AVX2}", layer.read(f"{SITE}/{AVX2}")[:40_000_000], mode=0o755),
    ),
    Fault(
        "operators-zeros",
        8,
        "op, ABI",
        "extensions",
        ("vllm.fs_io_C does not load",),
        "an extension holds zeros, as after a full disk",
        native("vllm/fs_io_C.abi3.so", lambda data: bytes(len(data))),
    ),
    Fault(
        "operators-unreadable",
        8,
        "op, ABI",
        "extensions",
        ("vllm.spinloop does not load", "denied"),
        "an extension can be read by root alone",
        mode(f"{SITE}/vllm/spinloop.abi3.so", 0o700),
    ),
    undefined(AVX2, "numa_", 9, "a build of the operators calls a kernel whose source was filtered out"),
    undefined("vllm/fs_io_C.abi3.so", "Py", 9, "an extension was bound to a function that its source does not have"),
    undefined("vllm/spinloop.abi3.so", "Py", 9, "an extension was bound to a function that its source does not have"),
    undefined(AVX2, "c10", 10, "the operators were compiled for another torch, whose c10 has a symbol of another name"),
)

MACHINES: tuple[Fault, ...] = (
    Fault(
        "other-machine-extension",
        12,
        "arch",
        "extensions",
        ("vllm.fs_io_C does not load",),
        "an extension was compiled for aarch64",
        native("vllm/fs_io_C.abi3.so", other_machine),
    ),
    Fault(
        "other-machine-library",
        12,
        "arch",
        LOADER,
        ("libzmq", "_zmq"),
        "a bundled library is aarch64's",
        native("pyzmq.libs/libzmq-82f916e6.so.5.2.5", other_machine),
    ),
    Fault(
        "other-machine-module",
        12,
        "arch",
        LOADER,
        ("_zmq", "AARCH64"),
        "a distribution's extension module is aarch64's",
        native(ZMQ, other_machine),
    ),
    Fault(
        "one-processor-dropped",
        12,
        "arch",
        "extensions",
        ("vllm._C_AVX2 is one of the base's extensions", "not in the image"),
        "the build of the operators for processors without AVX-512 is not in the wheel",
        not_in_wheel(AVX2),
    ),
    Fault(
        "glibc-newer-than-image",
        29,
        "wheel tag",
        "symbol-versions",
        (ZMQ, "GLIBC_9.9"),
        "an extension was linked against a newer C library than the image holds",
        native(ZMQ, partial(renamed_version, old="GLIBC_2.2.5", new="GLIBC_9.9")),
    ),
    Fault(
        "glibc-newer-operators",
        29,
        "wheel tag",
        "symbol-versions",
        ("vllm/fs_io_C.abi3.so", "GLIBC_9.99"),
        "vLLM's extension was linked against a newer C library than the image holds",
        native("vllm/fs_io_C.abi3.so", partial(renamed_version, old="GLIBC_2.14", new="GLIBC_9.99")),
    ),
    Fault(
        "other-accelerator-variable",
        30,
        "wheel tag",
        "environment",
        ("VLLM_TARGET_DEVICE",),
        "the image sets vLLM's target to another accelerator",
        lambda layer: layer.env("VLLM_TARGET_DEVICE", "cuda"),
    ),
    Fault(
        "two-archs-variable",
        41,
        "arch",
        "arch-variables",
        ("PYTORCH_ROCM_ARCH", "gfx942, gfx950"),
        "the run-time environment names two architectures",
        lambda layer: layer.env("PYTORCH_ROCM_ARCH", "gfx942;gfx950"),
    ),
)

NATIVE_FAULTS: tuple[Fault, ...] = (*LIBRARIES, *OPERATORS, *MACHINES)
