"""The closed list of ways a verb can end, each with its exit code.

Every error says what happened, why, and what to do next. They are caught in one
place (:mod:`seatrial.cli.main`), which prints them and exits with their code.
"""

from __future__ import annotations

from typing import ClassVar


class SeatrialError(Exception):
    """State one reason why a verb could not finish.

    Args:
        what: what happened, one sentence without a final full stop.
        why: the cause, as far as it is known.
        do: what the user can do next, in the imperative.
    """

    code: ClassVar[int] = 70
    label: ClassVar[str] = "internal"

    def __init__(self, what: str, *, why: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.do = do

    def __str__(self) -> str:
        """Return the error as one line."""
        return "; ".join(part for part in (self.what, self.why, self.do) if part)


class UsageError(SeatrialError):
    """A word on the command line is unknown or does not fit the others."""

    code = 2
    label = "usage"


class FindingsError(SeatrialError):
    """A detector or an inspection found what it looks for."""

    code = 1
    label = "findings"


class RefusedError(SeatrialError):
    """The gate refused to give a name."""

    code = 3
    label = "refused"


class UnsupportedError(SeatrialError):
    """This machine or this base cannot do what was asked."""

    code = 4
    label = "unsupported here"


class IntegrityError(SeatrialError):
    """Bytes are not the bytes that a lock, a receipt or a record names."""

    code = 5
    label = "integrity"


class LockError(SeatrialError):
    """A lock, table or fix file is malformed or was edited by hand."""

    code = 6
    label = "lock"


class FixError(SeatrialError):
    """A fix does not apply, or its defect is still there after it."""

    code = 7
    label = "fix"


class FetchError(SeatrialError):
    """Something could not be fetched from an index, a mirror or a repository."""

    code = 8
    label = "fetch"


class EngineError(SeatrialError):
    """The container engine is down, full, too old, or died in the middle."""

    code = 9
    label = "engine"


class BuildError(SeatrialError):
    """A wheel or an image could not be built."""

    code = 10
    label = "build"


class RegistryError(SeatrialError):
    """A registry answered with an error or with other bytes."""

    code = 11
    label = "registry"


class DiskError(SeatrialError):
    """There is no room, or a path cannot be written."""

    code = 12
    label = "disk"


class SmokeError(SeatrialError):
    """The smoke run itself could not be carried out (a failed case is a refusal, not this)."""

    code = 13
    label = "smoke"


class CommandError(SeatrialError):
    """An external command failed; raised by the process port, refined by its callers."""

    code = 14
    label = "command"

    def __init__(self, what: str, *, why: str = "", do: str = "", status: int | None = None, output: str = "") -> None:
        super().__init__(what, why=why, do=do)
        self.status = status
        self.output = output


class Interrupted(SeatrialError):
    """The user pressed Ctrl-C or the process was asked to end."""

    code = 130
    label = "interrupted"


ALL_ERRORS: tuple[type[SeatrialError], ...] = (
    SeatrialError,
    UsageError,
    FindingsError,
    RefusedError,
    UnsupportedError,
    IntegrityError,
    LockError,
    FixError,
    FetchError,
    EngineError,
    BuildError,
    RegistryError,
    DiskError,
    SmokeError,
    CommandError,
    Interrupted,
)
"""Every error class; the exit code table in the docs is made from it."""
