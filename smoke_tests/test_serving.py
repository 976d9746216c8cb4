"""Cases of a server's life: ready in time, the first request, what it lists, its log, its end."""

from __future__ import annotations

import httpx
import pytest

from smoke_tests import logs
from smoke_tests.compare import compare_answer
from smoke_tests.servers import SetupError, TrialError, alive
from smoke_tests.trial import Running


@pytest.mark.case("ready")
def test_ready(running: Running) -> None:
    """The server answers /health within its limit."""
    try:
        running.measured["ready_s"] = round(running.server.wait_ready(running.plan.limits.ready), 2)
    except TrialError as error:
        running.down = f"the server was never ready: {error}"
        raise


@pytest.mark.case("first-request")
def test_first_request(running: Running) -> None:
    """The very first request is answered: servers that say ready and die here are a known fault."""
    running.check_text(running.client.complete(running.prompt(), 4)["text"])


@pytest.mark.case("models")
def test_models(running: Running) -> None:
    """The served model is listed, /health answers, and the version is the base's."""
    listed = [entry["id"] for entry in running.client.get("/v1/models").json()["data"]]
    if running.client.model not in listed:
        raise TrialError(f"/v1/models lists {listed}, not {running.client.model}")
    if (status := running.client.get("/health").status_code) != httpx.codes.OK:
        raise TrialError(f"/health answers {status}")
    version = str(running.client.get("/version").json()["version"])
    running.measured["version"] = version
    if running.base and version.partition("+")[0] != running.base:
        raise TrialError(f"/version says {version}, the base is {running.base}")


@pytest.mark.case("serves-or-refuses")
def test_serves_or_refuses(running: Running) -> None:
    """A data type that the device cannot take is refused while the server starts, with reason and way out."""
    try:
        running.server.wait_ready(running.plan.limits.ready)
    except TrialError as error:
        code = running.server.exit_code()
        if code is None:
            running.down = f"the server was never ready: {error}"
            raise
        said = logs.telling_line(running.server.log())
        running.measured.update(ended="refused", exit_code=code, said=said)
        if code == 0 or "dtype" not in said or "bfloat16" not in said:
            raise TrialError(
                f"the server ended with exit code {code} and did not say which data type works (--dtype bfloat16)"
            ) from None
        return
    running.measured["ended"] = "served"
    if running.golden is None:
        raise SetupError("no golden answers")
    wanted = running.golden["answers"]["sea"]
    answer = running.client.answer(wanted["ids"], len(wanted["tokens"]))
    found = compare_answer("sea", wanted, answer.tokens, answer.top, running.tolerance["top"])
    running.measured["worst"] = round(found.worst, 4)
    if found.faults:
        raise TrialError(found.faults[0])
    if running.group.not_supported:
        raise TrialError("it serves, and profiles.toml declares the group's other cases as not supported: promise them")


@pytest.mark.case("log")
def test_log(running: Running) -> None:
    """The log holds no traceback."""
    log = running.server.log()
    if not log:
        raise TrialError("the server printed nothing: its log cannot be judged")
    if lines := logs.tracebacks(log):
        raise TrialError(f"{len(lines)} tracebacks in the server's log, the first in line {lines[0]}")


@pytest.mark.case("end")
def test_end(running: Running) -> None:
    """SIGTERM ends the server within its limit, with exit code 0 and nothing left behind."""
    server = running.server
    if (code := server.exit_code()) is not None:
        raise TrialError(f"the server had already ended, with exit code {code}")
    before = len(server.log())
    pids = server.pids()
    server.ask_to_end()
    code = server.wait_end(running.plan.limits.end)
    running.measured.update(exit_code=code, processes=len(pids))
    running.down = "the server was ended"
    if code != 0:
        raise TrialError(f"after SIGTERM the server ended with exit code {code}")
    if left := alive(pids):
        raise TrialError(f"{len(left)} of {len(pids)} processes still run after the server's end")
    # That the engine is gone is what was asked for; some releases print it as an error while they end.
    said = server.log()[before:]
    if logs.tracebacks(said) and not logs.CONSEQUENCE.search(cause := logs.telling_line(said)):
        raise TrialError(f"the server printed a traceback while it ended: {cause}")
