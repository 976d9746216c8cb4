"""Inspect: everything that can be known of a finished wheel or image without running its server."""

from seatrial.stages.inspect.image import inspect_image
from seatrial.stages.inspect.table import CASES, CHECKS

__all__ = ["CASES", "CHECKS", "inspect_image"]
