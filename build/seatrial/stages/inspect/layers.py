"""Layers: what a container does not see and whoever pulls the image has all the same."""

from __future__ import annotations

import posixpath

from seatrial.ports.layers import Hidden
from seatrial.stages.inspect.files import MB
from seatrial.stages.inspect.secrets import file_troubles
from seatrial.stages.inspect.subject import Found, Image

HIDDEN_MB = 50
"""MB (10^6 bytes) that later layers may delete or replace; it is downloaded and stored for nothing."""


def check_layers(image: Image) -> Found:
    """Look for secrets in files that a later layer deletes or replaces, and weigh those files."""
    excused = image.excused("layers")
    seen = image.layers()
    hidden, layers = list(seen.hidden), seen.sizes
    problems = [
        f"layer {one.layer} of {len(layers)} still has what a later one hides: {sentence}"
        for one in hidden
        for sentence in file_troubles(one.path, one.size, one.data.decode(errors="replace") if one.data else None)
        if not excused.allows(one.path)
    ]
    weight = sum(one.size for one in hidden)
    if weight > HIDDEN_MB * MB:
        problems.append(
            f"{weight / MB:.0f} MB of the layers are deleted or replaced by later ones (up to {HIDDEN_MB} may be), "
            f"most of them in {_heaviest(hidden)}"
        )
    measured = {
        "layers": [round(size / MB, 1) for size in layers],
        "hidden_files": len(hidden),
        "hidden_mb": round(weight / MB, 1),
        **excused.measured(),
    }
    return Found(tuple(problems) if layers else ("the image has no layer that could be read",), measured)


def _heaviest(hidden: list[Hidden]) -> str:
    folders: dict[str, int] = {}
    for one in hidden:
        folder = posixpath.dirname("/" + "/".join(one.path.split("/")[1:5]))
        folders[folder] = folders.get(folder, 0) + one.size
    return max(folders, key=lambda folder: folders[folder])
