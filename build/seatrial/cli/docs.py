"""Pages that are made from the code: one a verb, the exit codes, the platform matrix."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from seatrial.cli.verb import Context, Verb
from seatrial.flow.project import Project
from seatrial.model.errors import ALL_ERRORS, FindingsError
from seatrial.model.platforms import PlatformTable
from seatrial.ports.files import write_atomic
from seatrial.stages.inspect.page import tables
from seatrial.stages.record import schema_text

BEGIN = "<!-- made by `seatrial docs`: {name} -->"
END = "<!-- end: {name} -->"


def verb_page(verb: Verb) -> str:
    """Return the Markdown page of one verb, from its parser."""
    parser = argparse.ArgumentParser(prog=f"seatrial {verb.name}", add_help=False, formatter_class=_Wide)
    verb.arguments(parser)
    lines = [
        f"# seatrial {verb.name}",
        "",
        verb.description.strip(),
        "",
        "```",
        parser.format_usage().strip(),
        "```",
        "",
    ]
    rows = [
        f"| `{', '.join(action.option_strings) or action.dest}` | {action.help or ''} |" for action in parser._actions
    ]
    if rows:
        lines += ["| option | meaning |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def exit_codes() -> str:
    """Return the table of exit codes, from the closed list of errors."""
    rows = ["| code | name | when |", "| --- | --- | --- |", "| 0 | done | everything that was asked for is done |"]
    for error in sorted(ALL_ERRORS, key=lambda item: item.code):
        text = (error.__doc__ or "").strip().splitlines()[0].rstrip(".")
        if error is ALL_ERRORS[0]:
            text = "A fault in seatrial itself; the traceback is kept in a file that the line names"
        rows.append(f"| {error.code} | {error.label} | {text} |")
    return "\n".join(rows)


def matrix(table: PlatformTable, bases: Sequence[str]) -> str:
    """Return the platforms x bases table: what is built here, and what a platform still lacks."""
    rows = ["| platform | " + " | ".join(bases) + " | lacks |", "| --- |" + " --- |" * (len(bases) + 1)]
    for platform in table.platforms:
        cells = [
            "not run" if platform.missing or base not in platform.bases else "built, inspected, smoked in CI"
            for base in bases
        ]
        rows.append(f"| `{platform.name}` | " + " | ".join(cells) + f" | {platform.missing or 'nothing'} |")
    return "\n".join(rows)


def pages(project: Project, verbs: Sequence[Verb]) -> dict[str, str]:
    """Return every generated file's path below the checkout, and its text."""
    table = project.platform_table()
    made = {f"docs/verbs/{verb.name}.md": verb_page(verb) for verb in verbs}
    index = ["# Verbs", "", "| verb | what it does |", "| --- | --- |"]
    index += [f"| [{verb.name}]({verb.name}.md) | {verb.summary} |" for verb in verbs]
    made["docs/verbs/README.md"] = "\n".join([*index, "", "## Exit codes", "", exit_codes(), ""])
    inspect = (project.root / "docs" / "inspect.md").read_text(encoding="utf-8")
    for name, table_text in tables().items():
        inspect = _replace(inspect, name, table_text)
    made["docs/inspect.md"] = inspect
    made["docs/record.schema.json"] = schema_text().decode()
    readme = (project.root / "README.md").read_text(encoding="utf-8")
    made["README.md"] = _replace(readme, "matrix", matrix(table, project.base_versions()))
    return made


def _replace(text: str, name: str, body: str) -> str:
    begin, end = BEGIN.format(name=name), END.format(name=name)
    if begin not in text or end not in text:
        return text
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{body}\n{end}{rest.split(end, 1)[1]}"


class _Wide(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `docs`."""
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 when a page is stale")


def run(context: Context, options: argparse.Namespace, verbs: Sequence[Verb]) -> int:
    """Write the generated pages, or compare them."""
    stale = []
    for name, text in pages(context.project, verbs).items():
        path = context.project.root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not options.check:
                write_atomic(path, text.encode())
    if options.check and stale:
        raise FindingsError(f"{len(stale)} generated pages are stale", why=", ".join(stale), do="run: seatrial docs")
    context.console.line(f"{len(stale)} pages written" if stale else "every page is up to date")
    context.console.result({"written": stale})
    return 0
