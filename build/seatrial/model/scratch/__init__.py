"""Follow scratch tensors through a module's classes, from the call that allocates them to the kernels they reach.

Pure: sources in, findings out; nothing is imported, nothing is run. What the walk does not understand is unknown, and
nothing is claimed of it.
"""

from __future__ import annotations

from seatrial.model.scratch.analysis import analyse
from seatrial.model.scratch.found import Allocation, Analysis, Fused, Hazard, Span, Unproven, Use
from seatrial.model.scratch.roots import named_as_activations
from seatrial.model.scratch.telling import worth_parsing
from seatrial.model.scratch.text import source_lines, source_text

__all__ = [
    "Allocation",
    "Analysis",
    "Fused",
    "Hazard",
    "Span",
    "Unproven",
    "Use",
    "analyse",
    "named_as_activations",
    "source_lines",
    "source_text",
    "worth_parsing",
]
