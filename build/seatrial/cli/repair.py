"""The word `repair`."""

from __future__ import annotations

import argparse
from pathlib import Path

from seatrial.cli.verb import Context, Verb
from seatrial.flow.repair import REPAIRS, carry_out, plan_repair, refused


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fix", metavar="FIX", help=f"what to repair: {', '.join(REPAIRS)}")
    parser.add_argument(
        "tree", type=Path, metavar="TREE", help="a vLLM source folder; its files are rewritten in place"
    )
    parser.add_argument("--write-patch", type=Path, metavar="FILE", help="write the change as a patch for git am too")
    parser.add_argument("--dry-run", action="store_true", help="print the change, and leave the tree as it is")


def _run(context: Context, options: argparse.Namespace) -> int:
    console = context.console
    repaired, refusals = plan_repair(options.fix, options.tree)
    if refusals:
        for refusal in refusals:
            console.line(str(refusal))
        raise refused(options.tree, refusals)
    if repaired.files:
        for line in repaired.diff():
            console.line(line)
        carry_out(repaired, options.write_patch, dry_run=options.dry_run)
        done = "would be repaired" if options.dry_run else "repaired"
        console.line(f"{options.tree}: {len(repaired.files)} files {done} ({options.fix})")
        if options.write_patch is not None:
            console.line(f"patch for {repaired.taken_by}: {options.write_patch}")
    else:
        console.line(f"{options.tree}: nothing to do for {options.fix}")
    console.result({"fix": options.fix, "files": [one.path for one in repaired.files], "written": not options.dry_run})
    return 0


REPAIR = Verb(
    "repair",
    "rewrite a downstream tree that no patch fits",
    "Rewrite a vLLM source folder so that it no longer has a fix's defect, where its own changes let no patch fit."
    " What cannot be proven is refused with file and line, and nothing is written then (docs/repair.md).",
    _arguments,
    _run,
)
