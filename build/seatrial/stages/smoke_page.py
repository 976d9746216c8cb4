"""Reports as pages for people: one HTML file each, that needs nothing beside it.

Whatever a report holds may come from a server's log, so every text is escaped, and
characters that are shown as nothing are shown as their number.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence

from seatrial.model.comparison import Comparison, Pair, Worth
from seatrial.model.report import Case, Ending, Evidence, OpenRequest, Outcome, Report

UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Characters that a page would not show, or that would turn the order of the others."""

MARKS = {
    Outcome.PASSED: "\u2713",
    Outcome.FAILED: "\u2717",
    Outcome.ERROR: "!",
    Outcome.NOT_SUPPORTED: "\u2013",
    Outcome.NOT_RUN: "\u25cb",
}
"""A sign beside each word, for those who cannot tell the colours."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""No script and nothing from elsewhere, whatever else might be in the page."""

STYLE = """
:root{color-scheme:light dark;--line:#d5d9de;--soft:#f4f5f7;--text:#1c2024;--dim:#5b6570;
--good:#1a7f37;--bad:#c0262d;--warn:#8a5a00;--bar:#8fb3d9}
@media(prefers-color-scheme:dark){:root{--line:#363c44;--soft:#1d2126;--text:#e6e8ea;--dim:#9aa4af;
--good:#4ac26b;--bad:#ff7b72;--warn:#d9a336;--bar:#3f6791}body{background:#14171a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:1rem;font:15px/1.45 system-ui,sans-serif;color:var(--text)}
h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .5rem}
.sum{padding:.6rem .8rem;border-left:.3rem solid var(--dim);background:var(--soft);margin:.8rem 0}
.sum.passed{border-color:var(--good)}.sum.failed{border-color:var(--bad)}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.15rem .9rem;margin:0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
.row{display:grid;grid-template-columns:8.5rem minmax(0,1fr) 9rem;gap:.1rem .7rem;padding:.3rem 0;
border-top:1px solid var(--line);align-items:baseline}
.name{overflow-wrap:anywhere}
.passed{color:var(--good)}.failed,.error{color:var(--bad)}.not-supported{color:var(--dim)}.not-run{color:var(--warn)}
.sum{color:inherit}.verdict{font-weight:600;white-space:nowrap}
.time{display:grid;grid-template-columns:1fr 4.2rem;gap:.4rem;align-items:center;color:var(--dim);
font-variant-numeric:tabular-nums;text-align:right}
.track{height:.5rem;background:var(--soft);border-radius:.25rem;overflow:hidden}
.track i{display:block;height:100%;background:var(--bar);min-width:1px}
.why{grid-column:2/4;overflow-wrap:anywhere}.why code{color:var(--dim)}
details{margin:.4rem 0;border:1px solid var(--line);border-radius:.3rem}
summary{cursor:pointer;padding:.35rem .6rem;background:var(--soft)}
pre{margin:0;padding:.6rem;overflow:auto;max-height:32rem;font:12px/1.4 ui-monospace,monospace;white-space:pre-wrap;
overflow-wrap:anywhere}
code{font-family:ui-monospace,monospace;font-size:.86em}
ul{padding-left:1.2rem;overflow-wrap:anywhere}
.measured{display:inline;border:0;margin:0}
.measured summary{display:inline;background:none;padding:0 0 0 .4rem;color:var(--dim);font-size:.85em}
@media(max-width:40rem){.row{grid-template-columns:7.5rem minmax(0,1fr) 6.4rem}.why{grid-column:1/-1}
.time{grid-template-columns:1fr 3.8rem}dl{grid-template-columns:1fr}dt{margin-top:.3rem}
.pair{grid-template-columns:1fr!important}}
@media print{details{break-inside:avoid}pre{max-height:none}}
.pair{grid-template-columns:minmax(0,1fr) 10.5rem 12.5rem;margin-left:1.2rem}.pair .why{grid-column:1/-1}
"""


def shown(text: str) -> str:
    """Return text for a page: escaped, and with what would not be seen as its number."""
    return html.escape(UNSEEN.sub(lambda found: f"\\x{ord(found[0]):02x}", text))


def report_page(report: Report) -> str:
    """Return the page of one report."""
    title = f"{report.kind} {report.profile}" if report.kind == "smoke" else "inspect"
    body = [
        f"<h1>{shown(title)}: vLLM {shown(report.base)} on {shown(report.platform)}</h1>",
        _sum(report),
        *_wrong(report.bad),
        _facts(report),
        "<h2>Cases</h2>",
        *_groups(report.cases),
    ]
    if report.evidence:
        body += ["<h2>Evidence</h2>", *(_evidence(entry) for entry in report.evidence)]
    return _page(f"{title} {report.base} {report.platform}", body)


def comparison_page(found: Comparison) -> str:
    """Return the page of a comparison."""
    body = [
        f"<h1>With and without fixes: vLLM {shown(found.base)} on {shown(found.platform)}</h1>",
        f'<p class="sum">{shown(headline(found))}</p>',
        _list(
            {
                "profile": f"{found.profile}, {found.cases} cases",
                "with the fixes": f"{found.with_fixes} ({found.seconds[0]:.0f} s)",
                "without": f"{found.without} ({found.seconds[1]:.0f} s)",
                "device": f"{found.device.kind}: {found.device.name}",
            }
        ),
        "<h2>What each fix is worth here</h2>",
    ]
    colours = {Worth.LOAD_BEARING: "passed", Worth.STILL_RED: "failed", Worth.NOT_SHOWN: "not-run"}
    for part in found.fixes:
        colour = colours.get(part.worth, "not-supported")
        body.append(
            f'<div class="row"><span class="verdict {colour}">{part.worth.value}</span>'
            f'<span class="name"><b>{shown(part.fix)}</b> {shown(part.part)}</span><span></span>'
            f'<div class="why">{shown(part.says)}</div></div>'
        )
        body += [_pair(pair) for pair in part.cases]
    if not found.fixes:
        body.append("<p>The image names no fix.</p>")
    for heading, pairs in (
        ("Differs, though no fix says so", found.unexplained),
        ("Not judged on one side", found.not_judged),
    ):
        if pairs:
            body += [f"<h2>{heading}</h2>", *(_pair(pair) for pair in pairs)]
    return _page(f"with and without fixes {found.base} {found.platform}", body)


def headline(found: Comparison) -> str:
    """Return a comparison in one sentence."""
    counts = {worth: sum(part.worth is worth for part in found.fixes) for worth in Worth}
    words = [f"{count} {worth.value}" for worth, count in counts.items() if count]
    more = f"; {len(found.unexplained)} cases differ though no fix says so" if found.unexplained else ""
    return f"parts of fixes: {', '.join(words) or 'none'}{more}"


def _page(title: str, body: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{shown(title)}</title><style>{STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _sum(report: Report) -> str:
    counts = {outcome: sum(case.outcome is outcome for case in report.cases) for outcome in Outcome}
    words = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items() if count)
    fine = bool(report.cases) and not report.bad
    text = f"{MARKS[Outcome.PASSED]} nothing to object" if fine else f"{MARKS[Outcome.FAILED]} not in order"
    return (
        f'<p class="sum {"passed" if fine else "failed"}"><b>{text}</b>: {len(report.cases)} cases, {words}, '
        f"{report.seconds:.0f} s</p>"
    )


def _wrong(cases: Sequence[Case]) -> Iterable[str]:
    """Give what is wrong before all else; cases that were only not run are counted."""
    told = [case for case in cases if case.outcome is not Outcome.NOT_RUN]
    if cases:
        yield "<ul>"
        yield from (f"<li><b>{shown(case.name)}</b>: {shown(case.reason)}</li>" for case in told)
        if len(cases) > len(told):
            yield f"<li>{len(cases) - len(told)} cases were not run</li>"
        yield "</ul>"


def _facts(report: Report) -> str:
    device = report.device
    return _list(
        {
            "subject": f"{report.subject_kind} {report.subject}",
            "device": f"{device.kind}: {device.name}" + (" (a stand-in)" if device.rehearsed else ""),
            "started": report.started,
            **report.facts,
        }
    )


def _list(facts: dict[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{shown(name)}</dt><dd>{shown(text)}</dd>" for name, text in facts.items()) + "</dl>"


def _groups(cases: Sequence[Case]) -> Iterable[str]:
    """Give a heading for each server, and a row for each of its cases."""
    longest = max((case.seconds for case in cases), default=0.0)
    last = None
    for case in cases:
        group, _, name = case.name.rpartition("/")
        if group != last:
            total = sum(other.seconds for other in cases if other.name.rpartition("/")[0] == group)
            if group:
                yield f"<h3>{shown(group)} <small>{total:.1f} s</small></h3>"
            last = group
        yield _row(case, name, longest)


def _row(case: Case, name: str, longest: float) -> str:
    why = f"<div>{shown(case.reason)}</div>" if case.reason else ""
    why += f"<div>log: <code>{shown(case.log_line)}</code></div>" if case.log_line else ""
    numbers = ""
    if case.measured:
        text = json.dumps(case.measured, ensure_ascii=False, sort_keys=True)
        numbers = f'<details class="measured"><summary>measured</summary><code>{shown(text)}</code></details>'
    return (
        f'<div class="row">{_verdict(case.outcome)}<div class="name">{shown(name)} {numbers}</div>'
        f"{_time(case.seconds, longest)}" + (f'<div class="why">{why}</div>' if why else "") + "</div>"
    )


def _verdict(outcome: Outcome) -> str:
    return f'<span class="verdict {outcome.value}">{MARKS[outcome]} {outcome.value}</span>'


def _time(seconds: float, longest: float) -> str:
    share = 100 * seconds / longest if longest else 0
    text = f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
    return f'<span class="time"><span class="track"><i style="width:{share:.1f}%"></i></span>{text}</span>'


def _pair(pair: Pair) -> str:
    why = f"<div>{shown(pair.reason)}</div>" if pair.reason else ""
    why += f"<div>log: <code>{shown(pair.log_line)}</code></div>" if pair.log_line else ""
    return (
        f'<div class="row pair"><span class="name">{shown(pair.name)}</span>'
        f"<span>with: {_verdict(pair.with_fixes)}</span><span>without: {_verdict(pair.without)}</span>"
        + (f'<div class="why">{why}</div>' if why else "")
        + "</div>"
    )


def _evidence(entry: Evidence) -> str:
    parts = [f"<h3>{shown(entry.server)}</h3>", *(f"<p>limit passed: {shown(text)}</p>" for text in entry.breaches)]
    if entry.ending:
        parts.append(f"<p>{shown(ending_words(entry.ending))}</p>")
    parts += [f"<p>process ended on its way: <code>{shown(text)}</code></p>" for text in entry.gone]
    if entry.requests:
        lines = "\n".join(request_words(request) for request in entry.requests)
        parts.append(_fold(f"requests under way ({len(entry.requests)})", lines, opened=True))
    if entry.device:
        parts.append(_fold("device", entry.device))
    if entry.stacks:
        parts.append(_fold("processes and stacks", entry.stacks))
    parts.append(_fold("end of the log", entry.log_tail or "(the server printed nothing)"))
    return "".join(parts)


def ending_words(ending: Ending) -> str:
    """Return how a server ended, in one line."""
    oom = {True: "killed for memory", False: "not killed for memory", None: ""}[ending.oom_killed]
    parts = [f"ended with exit code {ending.exit_code}", ending.signal, oom]
    parts.append(f"core files: {ending.core_pattern}" if ending.core_pattern else "")
    return ", ".join(part for part in parts if part)


def request_words(request: OpenRequest) -> str:
    """Return a request in one line."""
    return (
        f"{request.method} {request.path} after {request.seconds:.1f} s: {request.ended or 'open'}  {request.body}"
    ).rstrip()


def _fold(name: str, text: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{shown(name)}</summary><pre>{shown(text)}</pre></details>"
