"""The names an image can be given: how they are made, ordered and planned.

A line is one base on one platform. It has numbered names, given once and never
moved, and one name that moves forward only. What an image is stands in its
labels; a tag is read back in one place, :meth:`Line.revision_of`, and only to
learn which numbers are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pydantic import model_validator

from seatrial.model.base import Version
from seatrial.model.errors import IntegrityError, RefusedError, UsageError
from seatrial.model.values import Frozen, Identifier

REPOSITORY = "vllm"
"""Repository of the names in the local engine."""

REVISION_LABEL = "org.seatrial.revision"
"""Image label: the revision number, in decimal."""

INPUTS_LABEL = "org.seatrial.inputs"
"""Image label: bare SHA-256 over everything that decides the image's content."""

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


class NameStore(Protocol):
    """One repository of an engine or a registry, as far as names go."""

    @property
    def where(self) -> str:
        """Return the repository as it stands in front of a tag (`vllm`, `host:5000/team/vllm`)."""
        ...

    def tags(self) -> Sequence[str]:
        """Return every tag."""
        ...

    def digest(self, tag: str) -> str | None:
        """Return the digest that a tag stands for, or None."""
        ...

    def labels(self, digest: str) -> Mapping[str, str]:
        """Return the labels of an image."""
        ...

    def put_tag(self, tag: str, digest: str) -> None:
        """Let a tag stand for a digest, whatever it stood for before."""
        ...


class Line(Frozen):
    """One base on one platform."""

    base: Version
    platform: Identifier

    @model_validator(mode="after")
    def _unmistakable(self) -> Line:
        """Refuse a platform whose moving tag could be read as a numbered one of another platform."""
        if re.search(r"-r[0-9]+$", self.platform):
            raise ValueError(f"platform {self.platform!r} ends like a revision")
        return self

    @property
    def moving_tag(self) -> str:
        """Return the tag that moves forward."""
        return f"{self.base}-{self.platform}"

    def release_tag(self, revision: int) -> str:
        """Return the tag of a revision; UsageError unless it is 1 or more and below 10^9."""
        if not _NUMBER.fullmatch(str(revision)):
            raise UsageError(f"there can be no revision {revision}", do="give a whole number from 1 on")
        return f"{self.moving_tag}-r{revision}"

    def revision_of(self, tag: str) -> int | None:
        """Return the revision whose tag this is, or None for any other tag."""
        number = tag.removeprefix(f"{self.moving_tag}-r")
        if number == tag or not _NUMBER.fullmatch(number):
            return None
        return int(number)


class NamePlan(Frozen):
    """What has to be done so that an image has its names."""

    give_release: bool
    move: bool
    passed_by: int | None = None
    """The higher revision because of which the moving name stays."""


def labelled_revision(labels: Mapping[str, str]) -> int | None:
    """Return the revision that an image's labels state, or None when they state none."""
    text = labels.get(REVISION_LABEL, "")
    return int(text) if _NUMBER.fullmatch(text) else None


def existing_revisions(store: NameStore, line: Line) -> list[tuple[int, str]]:
    """Return (revision, inputs digest) of every numbered name of a line, lowest first.

    The inputs digest is empty where the image has no such label: its number is taken all the same.
    """
    found: list[tuple[int, str]] = []
    for tag in store.tags():
        revision = line.revision_of(tag)
        if revision is None:
            continue
        digest = store.digest(tag)
        if digest is not None:
            found.append((revision, store.labels(digest).get(INPUTS_LABEL, "")))
    return sorted(found)


def choose_revision(existing: Iterable[tuple[int, str]], inputs_sha256: str, wanted: int | None = None) -> int:
    """Return the revision for a build: the one its inputs already have, else the next free one.

    Args:
        existing: (revision, inputs digest) of the names there are, from engine and registry alike.
        inputs_sha256: digest over this build's inputs.
        wanted: the number that the user asked for.

    Raises:
        RefusedError: the wanted number belongs to other inputs.
        UsageError: the wanted number is below 1.
    """
    taken = list(existing)
    if not inputs_sha256:
        raise UsageError("a revision cannot be chosen without a digest of the inputs")
    if wanted is None:
        same = [number for number, inputs in taken if inputs == inputs_sha256]
        return max(same) if same else max((number for number, _ in taken), default=0) + 1
    if wanted < 1:
        raise UsageError(f"there can be no revision {wanted}", do="give a whole number from 1 on")
    others = [inputs for number, inputs in taken if number == wanted and inputs != inputs_sha256]
    if others:
        free = max(number for number, _ in taken) + 1
        raise RefusedError(
            f"revision {wanted} is taken by a build of other inputs",
            why=f"its inputs are {others[0][:12] or 'unknown'}, these are {inputs_sha256[:12]}; a number never moves",
            do=f"leave --revision out, or give {free}",
        )
    return wanted


def plan_names(store: NameStore, line: Line, revision: int, digest: str) -> NamePlan:
    """Decide, reading only, what is missing for an image to have its names.

    Raises:
        IntegrityError: the image's labels state another revision.
        RefusedError: the number stands for another image, or the moving name for one that states no revision.
    """
    stated = labelled_revision(store.labels(digest))
    if stated != revision:
        raise IntegrityError(
            f"{digest} cannot become revision {revision}",
            why=f"its label {REVISION_LABEL} states {stated if stated is not None else 'no revision'}",
            do="build the image for that revision",
        )
    holder = store.digest(line.release_tag(revision))
    if holder not in (None, digest):
        raise RefusedError(
            f"{store.where}:{line.release_tag(revision)} already stands for {holder}",
            why=f"a numbered name is given once; this image is {digest}",
            do="run the same again: it takes the next free number",
        )
    moving = store.digest(line.moving_tag)
    if moving == digest:
        return NamePlan(give_release=holder is None, move=False)
    highest = max((number for tag in store.tags() if (number := line.revision_of(tag)) is not None), default=0)
    if moving is not None:
        highest = max(highest, _revision_of_moving(store, line, moving, revision))
    passed_by = highest if highest > revision else None
    return NamePlan(give_release=holder is None, move=passed_by is None, passed_by=passed_by)


def _revision_of_moving(store: NameStore, line: Line, moving: str, revision: int) -> int:
    at = labelled_revision(store.labels(moving))
    if at is None or at == revision:
        said = "states no revision" if at is None else f"calls itself revision {at} as well"
        raise RefusedError(
            f"{store.where}:{line.moving_tag} stands for an image that {said}",
            why=f"whether {revision} is forward of {moving} cannot be told",
            do=f"find out who made {moving}, take the name {line.moving_tag} off it, and run the same again",
        )
    return at
