"""Removes what dead runs left in the container engine: `python -m smoke_tests.leftovers`.

A run cleans up after itself, also when it is interrupted. One that was killed cannot;
everything that it made carries its name, so that the next run, or this, removes it.
"""

from __future__ import annotations

import sys

from smoke_tests.image_server import Engine
from smoke_tests.servers import SetupError


def main() -> int:
    """Remove them and say how many; exit status 1 when no engine answers."""
    try:
        count = Engine().remove_leftovers()
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{count} containers and networks of dead runs were removed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
