"""Load `patches/`: the series, and each fix with its detector and its patches."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any, cast

from seatrial.model.errors import FixError, LockError
from seatrial.model.fixes import Fix, Kind, Series
from seatrial.model.patches import check_form, touched_paths
from seatrial.model.series import Detector, LoadedFix, LoadedSeries, Patch
from seatrial.model.values import ModelT, parse_toml
from seatrial.ports.files import read_committed, sha256_tree

_PATCH_NAME = re.compile(r"^(\d+\.\d+\.\d+(?:\.post\d+)?)\.patch$")

PACKAGE = "vllm/"
"""The part of a tree that is in a wheel, and that a fix of kind python may change."""


def load_series(patches_dir: Path) -> LoadedSeries:
    """Load every fix of `patches/series.toml`, in order.

    Raises:
        LockError: a file is missing or malformed, a folder is not in the series, or the order contradicts `requires`.
        FixError: a patch reaches out of the tree, or a python fix out of the package.
    """
    series = _read(Series, patches_dir / "series.toml", "patches/series.toml")
    if len(set(series.fixes)) != len(series.fixes):
        raise LockError("patches/series.toml names a fix twice", do="keep the first of the two lines")
    folders = {path.parent.name for path in patches_dir.glob("*/fix.toml")}
    for fix_id in sorted(folders - set(series.fixes)):
        raise LockError(
            f"patches/{fix_id} is not in patches/series.toml", do="add it where it belongs, or remove the folder"
        )
    fixes = {fix_id: _load_fix(patches_dir / fix_id) for fix_id in series.fixes}
    for position, fix_id in enumerate(series.fixes):
        for required in fixes[fix_id].fix.requires:
            if required in series.fixes[position:]:
                raise LockError(
                    f"{fix_id} stands before {required}, which it requires",
                    do="change the order in patches/series.toml",
                )
    return LoadedSeries(series, fixes)


def _load_fix(folder: Path) -> LoadedFix:
    name = f"patches/{folder.name}"
    fix = _read(Fix, folder / "fix.toml", f"{name}/fix.toml")
    if fix.id != folder.name:
        raise LockError(f"{name}/fix.toml says that its id is {fix.id}", do="give folder and id one name")
    if lost := [entry.part for entry in fix.shows if entry.part not in fix.parts]:
        raise LockError(f"{name}/fix.toml shows a part {lost[0]!r} that parts does not list", do="correct either")
    patches = {}
    for path in sorted(folder.glob("*.patch")):
        match = _PATCH_NAME.match(path.name)
        if match is None:
            raise LockError(f"{name}/{path.name} is named for no base", do="name it <version>.patch")
        if match[1] not in fix.bases:
            raise LockError(
                f"{name}/{path.name} is for a base that fix.toml does not list", do=f'add "{match[1]}" to bases'
            )
        patches[match[1]] = read_patch(path, fix)
    if not (folder / fix.proof).is_file() or Path(fix.proof).name != fix.proof:
        raise LockError(f"{name} holds no {fix.proof}, its proof", do="write it, red without the fix and green with it")
    detector = _load_detector(folder / "defect.py", f"{name}/defect.py")
    code = sha256_tree(folder, (folder / "fix.toml", folder / "defect.py"))
    return LoadedFix(fix, detector, patches, code)


def read_patch(path: Path, fix: Fix) -> Patch:
    """Read one patch file and refuse what could not be applied as one clean commit."""
    origin = f"patches/{path.parent.name}/{path.name}"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LockError(f"{origin} cannot be read", why=str(error), do="restore it from git") from None
    check_form(data, origin)
    files = touched_paths(data, origin)
    outside = [file for file in files if not file.startswith(PACKAGE)]
    if fix.kind is Kind.PYTHON and outside:
        raise FixError(
            f"{origin} changes {outside[0]}",
            why=f"a fix of kind python changes files below {PACKAGE} only: a wheel holds no others",
            do="leave that file out of the patch, or make the fix one of kind native",
        )
    return Patch(f"{path.parent.name}/{path.name}", data, hashlib.sha256(data).hexdigest(), files)


def _load_detector(path: Path, origin: str) -> Detector:
    if not path.is_file():
        raise LockError(f"{origin} is missing", do="write subject(tree) and detect(tree) in it")
    name = f"seatrial_defect_{path.parent.name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LockError(f"{origin} cannot be imported")
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise LockError(f"{origin} cannot be imported", why=f"{type(error).__name__}: {error}", do="mend it") from error
    for wanted in ("subject", "detect"):
        if not callable(getattr(module, wanted, None)):
            raise LockError(f"{origin} has no {wanted}(tree)", do="see docs/fixes.md")
    return cast(Detector, module)


def _read(model: type[ModelT], path: Path, origin: str) -> ModelT:
    return parse_toml(model, read_committed(path, origin), origin)
