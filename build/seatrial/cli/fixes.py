"""The words `status`, `check`, `apply` and `export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from seatrial.cli.verb import Context, Verb
from seatrial.flow.fixes import apply_to, check_path, export_from, status_of
from seatrial.flow.shop import open_shop
from seatrial.model.errors import FindingsError
from seatrial.model.series import StatusTable


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base", action="append", default=[], metavar="V", help="only this base; may be given again")


def _status(context: Context, options: argparse.Namespace) -> int:
    table = status_of(open_shop(context.project, context.console), options.base)
    for line in status_lines(table):
        context.console.line(line)
    context.console.result(table.model_dump(mode="json"))
    return 0


def status_lines(table: StatusTable) -> list[str]:
    """Return the table of fixes by bases as aligned lines, reasons below it."""
    wide = max([len("fix"), *(len(fix.id) for fix in table.fixes)])
    columns = [max(len(base), 12) for base in table.bases]
    lines = [
        "  ".join(["fix".ljust(wide), *(base.ljust(width) for base, width in zip(table.bases, columns, strict=True))])
    ]
    reasons = []
    for fix in table.fixes:
        cells = [verdict.kind.value.ljust(width) for verdict, width in zip(fix.verdicts, columns, strict=True)]
        lines.append("  ".join([fix.id.ljust(wide), *cells]).rstrip())
        reasons += [f"{fix.id} on {verdict.base}: {verdict.reason}" for verdict in fix.verdicts if verdict.reason]
    return [*lines, "", *reasons] if reasons else lines


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a vLLM source folder, sdist or wheel")


def _check(context: Context, options: argparse.Namespace) -> int:
    result = check_path(open_shop(context.project, context.console), options.path)
    for found in result.findings:
        context.console.line(f"{found.path}:{found.line}: {found.fix}/{found.part}: {found.message}")
    for fix_id in dict.fromkeys(found.fix for found in result.findings):
        context.console.line(f"  cured by {fix_id}: {result.cures[fix_id]}")
    context.console.result(result.model_dump(mode="json"))
    if result.findings:
        raise FindingsError(
            f"{result.origin}: {len(result.findings)} findings by {len(result.detectors)} detectors",
            do="see the lines above; `seatrial apply` lays the fixes over a locked base",
        )
    context.console.line(f"{result.origin}: nothing found by {len(result.detectors)} detectors")
    return 0


def _apply_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base", metavar="V", help="upstream release; the platform's default when left out")
    parser.add_argument("--platform", required=True, metavar="P", help="row of images/platforms.toml")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to make: a git work tree")
    parser.add_argument(
        "--without", action="append", default=[], metavar="FIX", help="leave a fix out; may be given again"
    )


def _apply(context: Context, options: argparse.Namespace) -> int:
    patched = apply_to(
        open_shop(context.project, context.console), options.base, options.platform, options.out, options.without
    )
    for fix in patched.applied:
        context.console.line(f"{fix.id}: {fix.verdict.value}, {len(fix.files)} files")
    for skipped in patched.skipped:
        context.console.line(f"{skipped.id}: not applied, {skipped.verdict.value}: {skipped.why}")
    context.console.line(f"patched tree of base {patched.base}: {patched.root}")
    context.console.result(patched.model_dump(mode="json"))
    return 0


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tree", type=Path, metavar="DIR", help="work tree that `seatrial apply` made")


def _export(context: Context, options: argparse.Namespace) -> int:
    written = export_from(open_shop(context.project, context.console), options.tree)
    for patch in written:
        context.console.line(f"patches/{patch.path}: {'changed' if patch.changed else 'the same bytes'}")
    context.console.result([patch.model_dump(mode="json") for patch in written])
    return 0


STATUS = Verb(
    "status",
    "print what each fix is to each base",
    "Print fixes by bases: not-present, applies, upstream (already contained), partly, drift (defect present, no patch"
    " fits) or orphan (needs a fix that is gone).",
    _status_arguments,
    _status,
)
CHECK = Verb(
    "check",
    "run every detector over a vLLM tree",
    "Run every detector over a vLLM source folder, sdist or wheel; end with 1 when one finds its defect.",
    _check_arguments,
    _check,
)
APPLY = Verb(
    "apply",
    "lay the fixes of a platform over a base",
    "Make a git work tree whose commits are the fixes of a platform, on top of the pristine base.",
    _apply_arguments,
    _apply,
)
EXPORT = Verb(
    "export",
    "write the commits of an applied tree back to patches/",
    "Write the commits of a tree that `seatrial apply` made back to patches/; unchanged commits give the same bytes.",
    _export_arguments,
    _export,
)
