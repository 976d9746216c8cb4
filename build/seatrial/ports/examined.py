"""Remember what detectors said of a tree, for as long as neither they nor the tree change."""

from __future__ import annotations

from functools import cache as once
from pathlib import Path

import seatrial
from seatrial.model.errors import LockError
from seatrial.model.fixes import Finding
from seatrial.model.series import Examination, LoadedFix, LoadedSeries
from seatrial.model.values import Frozen, canonical_json, digest_of, parse_json
from seatrial.ports.files import sha256_tree, write_atomic
from seatrial.ports.trees import Source


class _Examined(Frozen):
    subject: bool
    findings: tuple[Finding, ...]


def examine(series: LoadedSeries, source: Source, cache: Path) -> dict[str, Examination]:
    """Return what each detector says of a tree, from the cache where it was asked before.

    What was said is kept under a digest over the tree, the fix's own files and the engine's whole code, because
    detectors may use any of it. A file that cannot be read counts as none.

    Args:
        cache: seatrial's cache folder.

    Raises:
        FixError: a detector failed.
    """
    return {loaded.id: _examine(loaded, source, cache / "examined") for loaded in series.ordered()}


def _examine(loaded: LoadedFix, source: Source, folder: Path) -> Examination:
    path = folder / f"{digest_of([source.digest, loaded.code_sha256, _engine()])}.json"
    try:
        known = parse_json(_Examined, path.read_bytes(), path.name)
    except (OSError, LockError):
        made = loaded.examine(source.tree)
        said = _Examined(subject=made.subject, findings=made.findings)
        write_atomic(path, canonical_json(said.model_dump(mode="json")))
        return made
    return Examination(known.subject, known.findings)


@once
def _engine() -> str:
    root = Path(seatrial.__file__).parent
    return sha256_tree(root, root.rglob("*.py"))
