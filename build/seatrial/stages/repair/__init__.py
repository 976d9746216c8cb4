"""Rewrite a downstream tree's sources so that their scratch tensors follow the model's dtype."""

from __future__ import annotations

from seatrial.stages.repair.edits import Refusal
from seatrial.stages.repair.sources import Rewritten, prove, rewrite_source
from seatrial.stages.repair.tree import repair_tree, write_patch, write_tree

__all__ = ["Refusal", "Rewritten", "prove", "repair_tree", "rewrite_source", "write_patch", "write_tree"]
