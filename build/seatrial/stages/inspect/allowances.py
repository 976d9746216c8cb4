"""Exceptions that hold for every vLLM image, each with its reason; a platform's own come with the expectation.

Those that an image needed are listed in its report, so that nothing is excused in silence.
"""

from __future__ import annotations

from seatrial.model.expectation import Allowance

_DRIVER = "belongs to the GPU driver: the container runtime mounts the host's own, which has to fit its kernel module"
_NUMBA = "numba tries its threading layers one after another, and the last one needs no library"
_RDMA = "a transport for networks that few hosts have; its loader tries it and goes on without"
_OFFLOAD = "a plugin of Intel's OpenMP or SYCL for offloading to accelerators; nothing loads it on a CPU"

COMMON: tuple[Allowance, ...] = (
    *(
        Allowance(check="native-closure", pattern=f"* -> {name}", why=_DRIVER)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libze_loader.so.1")
    ),
    *(
        Allowance(check="native-closure", pattern=f"*/numba/np/ufunc/{name}pool.* -> lib*", why=_NUMBA)
        for name in ("omp", "tbb")
    ),
    *(
        Allowance(check="native-closure", pattern=pattern, why=_RDMA)
        for pattern in (
            "*/nvidia/*/lib/nvshmem_*.so* -> lib*",
            "*/nvidia/*/lib/libcufile_rdma.so* -> lib*",
            "*/torch/lib/libtorch_nvshmem.so -> lib*",
        )
    ),
    *(
        Allowance(check="native-closure", pattern=f"*/lib/{name}* -> lib*", why=_OFFLOAD)
        for name in ("libomptarget", "libur_", "libpi_", "libsycl", "libarcher.so")
    ),
    Allowance(check="extensions", pattern="vllm.cumem_allocator: *libcuda.so.1*", why=_DRIVER),
)


def common(device: str) -> tuple[Allowance, ...]:
    """Return those that hold on a platform's device; an empty word stands for an unknown one.

    Intel's user-mode driver is no part of the host's: an image for its GPUs has to bring the loader of it.
    """
    return tuple(one for one in COMMON if device != "xpu" or not one.pattern.endswith("libze_loader.so.1"))
