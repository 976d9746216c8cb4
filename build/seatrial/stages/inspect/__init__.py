"""Inspect: everything that can be known of a finished wheel or image without running its server."""

from seatrial.stages.inspect.image import inspect_image, keeps_of_layers
from seatrial.stages.inspect.table import CASES, CHECKS
from seatrial.stages.inspect.wheel import WHEEL_CHECKS, inspect_wheel

__all__ = ["CASES", "CHECKS", "WHEEL_CHECKS", "inspect_image", "inspect_wheel", "keeps_of_layers"]
