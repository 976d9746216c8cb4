"""The commit of an upstream release: what git's tag says, what the release says of itself."""

from __future__ import annotations

import re

from seatrial.model.errors import CommandError, FetchError, IntegrityError
from seatrial.ports import process
from seatrial.ports.remote_zip import RemoteWheel

FULL_COMMIT = re.compile(r"^[0-9a-f]{40}$")
SHORT_COMMIT = re.compile(r"commit_id = 'g([0-9a-f]{7,40})'")
LS_REMOTE_SECONDS = 30.0


def learn_commit(git_url: str, tag: str, given: str | None, short: str | None, wheel: str) -> tuple[str, str]:
    """Return the full commit of a tag and how it was learned.

    Args:
        given: what the user says, used where the repository cannot be reached.
        short: the abbreviated commit that the official wheel says it was built from.
        wheel: the wheel's name, for the evidence.

    Raises:
        FetchError: nothing tells the commit, or nothing confirms the given one.
        IntegrityError: two of the three disagree.
    """
    remote, trouble = _remote_commit(git_url, tag)
    full = remote or given
    if full is None:
        raise FetchError(
            f"the commit of {tag} is not known",
            why=f"git ls-remote {git_url}: {trouble}" + (f"; {wheel} says it is {short}..." if short else ""),
            do=f"give it: nox -s lock-base -- {tag.removeprefix('v')} --commit FULL",
        )
    if remote and given and remote != given:
        raise IntegrityError(f"{tag} is {remote} at {git_url}, not {given}", do="leave --commit out")
    if short and not full.startswith(short):
        raise IntegrityError(
            f"{tag} is said to be {full}",
            why=f"{wheel} says in vllm/_version.py that it was built from {short}",
            do="give the commit that the tag points at" if given else "do not use this release: its sources disagree",
        )
    agrees = f"vllm/_version.py of {wheel} agrees (g{short})" if short else f"{wheel} names no commit to compare with"
    if remote:
        return full, f"git ls-remote of the tag; {agrees}"
    if not short:
        raise FetchError(f"nothing confirms the commit {full}", why=f"git ls-remote {git_url}: {trouble}; {agrees}")
    return full, f"given with --commit, the repository could not be reached; {agrees}"


def _remote_commit(git_url: str, tag: str) -> tuple[str | None, str]:
    """Ask the repository (or the mirror that git's insteadOf names) for a tag's commit; None and the reason if not."""
    refs = [f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}"]
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "LC_ALL": "C"}
    try:
        text = process.run(["git", "ls-remote", git_url, *refs], timeout=LS_REMOTE_SECONDS, env=quiet).text
    except CommandError as error:
        return None, (error.output.splitlines() or [error.what])[-1]
    found = {name: commit for commit, _, name in (line.partition("\t") for line in text.splitlines())}
    commit = found.get(refs[1]) or found.get(refs[0])
    return (commit, "") if commit else (None, f"there is no tag {tag}")


def short_commit(wheel: RemoteWheel) -> str | None:
    """Return the abbreviated commit that a vLLM wheel says it was built from, None when it says nothing."""
    try:
        match = SHORT_COMMIT.search(wheel.read("vllm/_version.py").decode())
    except KeyError:
        return None
    return match.group(1) if match else None
