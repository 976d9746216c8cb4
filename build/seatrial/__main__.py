"""Run `python -m seatrial`."""

import sys

from seatrial.cli.main import main

sys.exit(main())
