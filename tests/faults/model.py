"""What a seeded fault is, what came of it, and the numbers that are made of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tests.faults.derive import Layer
    from tests.faults.good import Good

Subject = Literal["image", "server", "wheel", "tree", "registry", "record"]
"""What is broken. `image` is judged by inspect alone, `server` by inspect and then by smoke."""

SUBJECTS: tuple[Subject, ...] = ("image", "server", "wheel", "tree", "registry", "record")

LONGEST = 400
"""Letters of a sentence that a result keeps."""

COLUMN = 0
"""Row of faults that stand in no report of the list; the promise of what inspect sees names them."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What the code that is on trial said of one artifact."""

    by: tuple[str, ...]
    """Checks or cases that object; empty: nothing does."""
    sentences: tuple[str, ...]
    """One for each of them, as the user reads it."""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break a good artifact."""

    name: str
    row: int
    """Number in the list of real failures, or :data:`COLUMN`."""
    kind: str
    """Kind in that list: library, op, arch, dependency, stale, ..."""
    check: str
    """The cheapest check or case that can see it."""
    words: tuple[str, ...]
    """All of these have to stand in the sentence of that check."""
    what: str
    """What was broken, one sentence."""
    seed: Callable[[Layer], None] | None = None
    """Breaks an image: what it adds to the good one."""
    judge: Callable[[Good], Judged] | None = None
    """Breaks another artifact and has it judged by the code that would meet it."""
    subject: Subject = "image"
    fake: str = ""
    """What of it is not real; empty when all is."""
    open: str = ""
    """Why nothing sees it yet; empty when it has to be caught."""
    ci: bool = True
    """Runs in CI; else by night."""


@dataclass(frozen=True, slots=True)
class Server:
    """How a `server` fault is tried: the group of the basic profile that sees it."""

    group: str
    cases: tuple[str, ...] = ()
    """Cases of the group that are run; all when empty."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one fault or one clean run."""

    name: str
    caught: bool
    """Refused by the expected check in the expected words; for a clean run: refused at all."""
    by: tuple[str, ...]
    said: str
    """The sentence of the expected check, else the first one."""
    seconds: float
    digest: str = ""
    error: str = ""
    """Why it could not be tried."""

    def row(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "by": list(self.by)}


@dataclass(frozen=True, slots=True)
class Score:
    """The numbers of a run."""

    seeded: int
    caught: int
    clean: int
    false_alarms: int
    lost: tuple[str, ...] = field(default=())
    """Names of faults that were not caught."""


def judge(fault: Fault, judged: Judged, seconds: float) -> Outcome:
    """Return whether the expected check refused in the expected words."""
    pairs = list(zip(judged.by, judged.sentences, strict=True))
    said = next((sentence for by, sentence in pairs if by == fault.check), "")
    caught = bool(said) and all(word in said for word in fault.words)
    first = judged.sentences[0] if judged.sentences else ""
    return Outcome(fault.name, caught, judged.by, (said or first)[:LONGEST], round(seconds, 1), judged.digest)


def score(faults: Sequence[Fault], tried: Sequence[Outcome], clean: Sequence[Outcome]) -> Score:
    """Count; a fault that nothing sees yet counts as seeded and not caught."""
    by_name = {one.name: one for one in tried}
    seeded = [fault for fault in faults if fault.name in by_name]
    lost = [fault.name for fault in seeded if not by_name[fault.name].caught]
    alarms = [one for one in clean if one.by or one.error]
    return Score(len(seeded), len(seeded) - len(lost), len(clean), len(alarms), tuple(lost))
