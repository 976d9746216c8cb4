"""Every verb, in the order in which help shows them."""

from __future__ import annotations

import argparse

from seatrial.cli import docs
from seatrial.cli.base import LOCK_BASE
from seatrial.cli.build import BUILD, SETUP
from seatrial.cli.fixes import APPLY, CHECK, EXPORT, STATUS
from seatrial.cli.images import INSPECT, LOCK_OPERATORS, LOCK_REQUIREMENTS
from seatrial.cli.repair import REPAIR
from seatrial.cli.smoke import SMOKE
from seatrial.cli.verb import Context, Verb


def _docs(context: Context, options: argparse.Namespace) -> int:
    return docs.run(context, options, VERBS)


DOCS = Verb(
    "docs",
    "write the pages that are made from the code",
    "Write docs/verbs/ and the generated parts of the README from the code and the platform table.",
    docs.arguments,
    _docs,
)

VERBS: tuple[Verb, ...] = (
    BUILD,
    STATUS,
    CHECK,
    APPLY,
    EXPORT,
    REPAIR,
    INSPECT,
    SMOKE,
    LOCK_BASE,
    LOCK_REQUIREMENTS,
    LOCK_OPERATORS,
    SETUP,
    DOCS,
)
