"""Write down what a base's extensions register, as they do it inside an image."""

from __future__ import annotations

import base64
from pathlib import Path

from seatrial.flow.project import choose_base
from seatrial.flow.shop import Shop
from seatrial.model.errors import IntegrityError, LockError
from seatrial.model.operators import OperatorList, operators_text
from seatrial.model.wheel import is_native
from seatrial.ports.files import write_atomic
from seatrial.ports.images import Images
from seatrial.ports.wheelfile import recorded_lines
from seatrial.stages.fetch import fetch_artifact
from seatrial.stages.inspect.image import load_extensions


def lock_operators(shop: Shop, platform: str, base: str | None, image: str, images: Images) -> Path:
    """Load the extensions inside an image and write what they register to `images/operators/`.

    The list is about upstream's binaries: the image's extensions have to be those of the base's wheel, byte for byte.

    Args:
        image: any image that holds the base's wheel and its torch, named or not.

    Raises:
        IntegrityError: the image's extensions are not upstream's.
        LockError: one of them does not load, so that the list would be short.
    """
    row = shop.project.platform_table().row(platform)
    lock = shop.project.base_lock(choose_base(row, base))
    if row.artifact is None:
        raise LockError(f"platform {row.name} names no upstream wheel", do="add artifact to its row")
    wheel = fetch_artifact(lock, row.artifact, cache=shop.cache, index=shop.index, console=shop.console)
    promised = {name: _hex(digest) for name, digest in recorded_lines(wheel) if is_native(name) and digest}
    seen = load_extensions(image, images, shop.console)
    for module, (place, digest, operators) in seen.items():
        if promised.get(place) != digest:
            raise IntegrityError(
                f"{place} in {image} is not the one of {wheel.name}",
                why=f"sha256 {digest[:12]}, the wheel's RECORD says {promised.get(place, 'nothing')[:12]}",
                do="give an image of this base",
            )
        if operators is None:
            raise LockError(f"{module} does not load in {image}", do="see: seatrial inspect IMAGE")
    known = shop.project.operator_list(lock.version, row.name)
    made = OperatorList(
        base=lock.version,
        platform=row.name,
        natives={module: digest for module, (_, digest, _) in seen.items()},
        operators={module: tuple(operators or ()) for module, (_, _, operators) in seen.items()},
        absent=known.absent if known else (),
    )
    path = shop.project.images / "operators" / f"{lock.version}-{row.name}.toml"
    write_atomic(path, operators_text(made).encode())
    return path


def _hex(digest: str) -> str:
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
