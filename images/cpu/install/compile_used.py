"""Compile vLLM, and of everything else what its server imports: the image's root may be read-only at run time.

All modules of all packages would be 300 MB of compiled code, two thirds of it never loaded. Compiled modules carry
their source's hash, not its time: the same bytes in every build, and a file that is changed later is compiled anew.
"""

import importlib
import importlib.metadata
import os
import py_compile
import sys
import sysconfig
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ENTRIES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.structured_output.backend_guidance",
    "vllm.v1.structured_output.backend_xgrammar",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.models.qwen3",
    "transformers.models.auto.processing_auto",
    "transformers.models.auto.tokenization_auto",
)
"""What a server process, its engine and its worker import first; a name that a base does not have is passed over."""

AT_LEAST = 2000
"""Fewer used modules mean that the imports broke off early."""


def used(site: Path) -> list[str]:
    """Import the entries and return the environment's modules that were loaded, sorted."""
    # vLLM chooses its platform by the version of the distribution `vllm`, which is laid over in a later layer.
    real = importlib.metadata.version
    importlib.metadata.version = lambda name: "0+cpu" if name == "vllm" else real(name)
    for entry in ENTRIES:
        try:
            importlib.import_module(entry)
        except ModuleNotFoundError as error:
            if not (error.name and entry.startswith(error.name)):
                raise
            sys.stdout.write(f"compile_used: this base has no {error.name}\n")
    files = {str(module.__file__) for module in list(sys.modules.values()) if getattr(module, "__file__", None)}
    return sorted(name for name in files if name.startswith(f"{site}/") and name.endswith(".py"))


def package(site: Path, name: str) -> list[str]:
    """Return every module of a package, sorted."""
    return sorted(str(path) for path in (site / name).rglob("*.py"))


def compile_one(path: str) -> None:
    """Compile a module; a file of another Python's syntax, shipped as data, stays as it is."""
    try:
        py_compile.compile(path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH, quiet=1)
    except (py_compile.PyCompileError, SyntaxError, ValueError):
        return


def main() -> None:
    """Compile, each module in a process that has compiled the same ones before it: the bytes must not vary."""
    site = Path(sysconfig.get_path("purelib"))
    loaded = used(site)
    if len(loaded) < AT_LEAST:
        sys.exit(f"compile_used: only {len(loaded)} modules are loaded by the server's imports")
    wanted = sorted({*loaded, *package(site, "vllm")})
    with ProcessPoolExecutor(max_tasks_per_child=1) as pool:
        list(pool.map(compile_many, [wanted[start : start + 256] for start in range(0, len(wanted), 256)]))
    sys.stdout.write(f"compile_used: {len(wanted)} modules\n")


def compile_many(paths: list[str]) -> None:
    """Compile modules one after the other."""
    for path in paths:
        compile_one(path)


if __name__ == "__main__":
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    main()
