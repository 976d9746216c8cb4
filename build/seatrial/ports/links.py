"""Second names for files, so that a build context costs no disk."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from seatrial.ports.files import disk_errors


def link(source: Path, target: Path) -> None:
    """Give a file a second name; on another file system, copy it."""
    with disk_errors(target):
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                raise
            shutil.copyfile(source, target)
