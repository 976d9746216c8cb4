"""Give an image its names, in an engine or in a registry: the only code that does, and only through the gate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.model.errors import RefusedError
from seatrial.model.gate import Cause, Decision, Policy, decide
from seatrial.model.names import Line, NameStore, plan_names
from seatrial.model.report import Report
from seatrial.ports.console import Console
from seatrial.ports.receipts import alone

LOCK_WAIT = 60.0
"""Seconds to wait for another process of this machine that gives names at the same moment."""


def give_names(
    store: NameStore,
    digest: str,
    line: Line,
    revision: int,
    *,
    reports: Sequence[Report],
    policy: Policy,
    lock: Path,
    console: Console,
) -> tuple[str, ...]:
    """Ask the gate, then give the numbered name, then move the moving one forward.

    The numbered name comes first: a process that is killed between the two leaves names that are all true, and the
    next run does the rest. Running it again changes nothing.

    Args:
        store: where the names go; it holds the image already.
        digest: manifest digest of the image.
        reports: what inspect and smoke saw; judged here, whatever was decided elsewhere.
        lock: file by which processes of one machine take turns; one for each store.

    Returns:
        Every name of the line that stands for the image now, the numbered one first.

    Raises:
        RefusedError: the gate refuses, or the number stands for another image.
        IntegrityError: the image's labels state another revision.
        EngineError, RegistryError: the store does not do its part.
    """
    require_allowed(decide(digest, reports, policy), line, policy, console)
    release, moving = line.release_tag(revision), line.moving_tag
    with alone(lock, f"naming in {store.where}", wait=LOCK_WAIT):
        plan = plan_names(store, line, revision, digest)
        if plan.give_release:
            _put(store, release, digest)
        if plan.move:
            _put(store, moving, digest)
    if plan.passed_by is not None:
        console.line(f"{store.where}:{moving} stays at revision {plan.passed_by}, which is newer")
    if not (plan.give_release or plan.move):
        console.detail(f"{store.where}:{release} stands for {digest} already")
    names = [release] if plan.passed_by is not None else [release, moving]
    for name in names:
        console.line(f"{store.where}:{name} -> {digest}", style="bold green")
    return tuple(f"{store.where}:{name}" for name in names)


def require_allowed(decision: Decision, line: Line, policy: Policy, console: Console) -> None:
    """Print every objection and raise RefusedError unless the gate allows the image a name on this line."""
    if (policy.base, policy.platform) != (line.base, line.platform):
        raise RefusedError(
            f"{line.moving_tag} cannot be given by the rules of {policy.base}-{policy.platform}",
            do="this is a fault in seatrial; please report it",
        )
    if decision.allowed:
        return
    for refusal in decision.refusals:
        console.line(f"refused: {refusal.sentence}", style="red")
    # What went wrong in a trial says more than what was asked for, so a failed case is the reason that is given.
    telling = [refusal for refusal in decision.refusals if refusal.cause is Cause.BAD_CASE]
    first, more = (telling or list(decision.refusals))[0].sentence, len(decision.refusals) - 1
    raise RefusedError(
        f"the gate gives {decision.subject} no name on {line.moving_tag}",
        why=first + (f" (and {more} more)" if more else ""),
        do="mend what the lines above name, and run the same again",
    )


def _put(store: NameStore, tag: str, digest: str) -> None:
    store.put_tag(tag, digest)
    held = store.digest(tag)
    if held != digest:
        raise RefusedError(
            f"{store.where}:{tag} was taken in the same moment",
            why=f"it stands for {held}, not for {digest}",
            do="run the same again",
        )
