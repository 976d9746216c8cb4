"""One run: which server is up, what its cases may use, and what is kept when a case goes wrong."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smoke_tests import logs
from smoke_tests.client import Client
from smoke_tests.evidence import LATE, Watch, device_text, ending_of
from smoke_tests.models.recipes import folder_sha256, write_model
from smoke_tests.profiles import Group, Plan
from smoke_tests.results import Results
from smoke_tests.servers import LimitError, Server, SetupError, TrialError, alive
from smoke_tests.subjects import Subject

SERVED = "seatrial-{model}"
"""Name under which a tiny model is served."""

WHOLE_LOG = ("ready", "log", "end", "serves-or-refuses")
"""Cases about a server's whole life; a line of the log that says why may be older than the case."""

GOLDEN = Path(__file__).parent / "models" / "golden"


def read_golden(model: str) -> dict[str, Any]:
    """Return the golden answers of a model."""
    return dict(json.loads((GOLDEN / f"{model}.json").read_text(encoding="utf-8")))


@dataclass
class Running:
    """The server of one group, and what its cases share."""

    group: Group
    plan: Plan
    server: Server
    client: Client
    golden: Mapping[str, Any] | None
    """None where a server that is not ours serves another model."""
    base: str
    environment: Mapping[str, str]
    """What was set in the server."""
    kept: dict[str, Any]
    """What a case of one server keeps for those of the servers after it: answers by prompt."""
    down: str = ""
    """Why the server cannot be used any more."""
    measured: dict[str, Any] = field(default_factory=dict)
    """Numbers of the current case."""
    mark: int = 0
    """Length of the log when the current case began."""
    census: dict[int, str] = field(default_factory=dict)
    """Processes of the server when the current case began."""
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        """Watch for requests that are open for too long."""
        limits = self.plan.limits
        take = lambda: self.server.stacks(limits.stacks)  # noqa: E731
        self.watch = Watch(self.client.ledger, LATE * limits.request, take)
        if self.server.ours:
            self.watch.start()

    def begin(self, case: str) -> None:
        """Forget the numbers of the case before, and note where its log ends; some cases judge all of it."""
        self.measured = {}
        self.client.ledger.forget()
        self.watch.forget()
        self.census = self.server.census()
        self.mark = 0 if case in WHOLE_LOG else len(self.server.log())

    def check_text(self, text: str) -> None:
        """Fail on a text that a tiny model cannot say: not-a-number logits choose the first token for ever."""
        if not text or (self.golden is not None and not text.isprintable()):
            raise TrialError(f"the answer is {text!r}, and the model has only printable tokens to say")

    @property
    def tolerance(self) -> dict[str, float]:
        """Return the allowed differences of log probabilities for the group's data type."""
        assert self.golden is not None
        return dict(self.golden["tolerance"][self.group.tolerance])

    def prompt(self, name: str = "sea") -> list[int]:
        """Return the token ids of a golden prompt; plain small ids where the model is another."""
        return list(self.golden["answers"][name]["ids"]) if self.golden else list(range(100, 112))

    def gone(self) -> list[str]:
        """Return the processes that were there when the case began and have ended."""
        left = set(alive(list(self.census)))
        return [f"{pid} {command}" for pid, command in self.census.items() if pid not in left]

    def hangs(self, case: str) -> None:
        """Find out after a limit was passed whether the server answers anything; if not it is not asked again."""
        limit = min(self.plan.limits.request, self.plan.limits.stacks)
        probe = Client(self.server.url, self.client.model, limit)
        try:
            probe.complete(self.prompt(), 1)
        except LimitError:
            self.down = f"the server hangs since {case}: not even one token came within {limit:.0f} s"
        except TrialError:
            pass  # it answers, if only with an error: the cases that follow tell
        finally:
            probe.close()

    def look(self) -> str:
        """Note whether the server still lives, and return why not."""
        if not self.down and (code := self.server.exit_code()) is not None:
            self.down = f"the server ended with exit code {code}"
        return self.down


class Trial:
    """Starts at most one server at a time and leaves nothing behind."""

    def __init__(self, plan: Plan, subject: Subject, results: Results, *, read_only: bool) -> None:
        self.plan = plan
        self.subject = subject
        self.results = results
        self._read_only = read_only
        self._running: Running | None = None
        self._ended: dict[str, str] = {}
        self._scratch: Path | None = None
        self._kept: dict[str, Any] = {}

    def running(self, group: Group) -> Running:
        """Return the server of a group, started when it is not yet."""
        if self._running is None or self._running.group.name != group.name:
            self.finish_group()
            self._running = self._start(group)
        return self._running

    def finish_group(self) -> None:
        """End the current server."""
        if self._running is not None:
            self._running.watch.end()
            self._running.client.close()
            self._running.server.close()
            self._running = None

    def close(self) -> None:
        """End the current server and remove the models."""
        self.finish_group()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def why_down(self, group: Group) -> str:
        """Return why a group's server cannot be used, or an empty text."""
        if self._running is not None and self._running.group.name == group.name:
            return self._running.look()
        return ""

    def keep_evidence(self, group: Group, case: str, error: BaseException | None) -> str:
        """Keep what can be known of a group's server after a bad case, and return the log's line that says why.

        After a limit was passed these are the stacks too; of a server that has ended, how it ended.
        """
        running = self._running
        if running is None or running.group.name != group.name or not running.server.ours:
            return ""
        server, limits = running.server, self.plan.limits
        more: dict[str, Any] = {"requests": running.client.ledger.facts(), "gone": running.gone()}
        stacks, breach = "", ""
        if isinstance(error, LimitError):
            breach = f"{case}: {error} (limit {error.phase!r})"
            stacks = f"at {case}\n{running.watch.taken() or server.stacks(limits.stacks)}"
            more["device"] = device_text(self.plan.device)
        if (code := server.exit_code()) is not None:
            more["ending"] = ending_of(code, oom_killed=server.oom_killed())
        log = server.log()
        self.results.keep(group.name, logs.tail(log), stacks, breach=breach, **more)
        line = logs.telling_line(log[running.mark :])
        line = line or (logs.telling_line(log) if running.look() else "")
        if isinstance(error, LimitError) and error.phase in ("request", "case") and not running.look():
            running.hangs(case)
        return line

    def _start(self, group: Group) -> Running:
        name = SERVED.format(model=group.model)
        model = self._model(group.model)
        server = self.subject.server(
            group.name,
            model,
            ["--served-model-name", name, *group.flags],
            group.environment,
            device=self.plan.device,
            read_only=self._read_only or group.read_only,
        )
        golden: Mapping[str, Any] | None = read_golden(group.model)
        server.start()
        if not server.ours:
            served = served_names(server.url)
            if name not in served:
                name, golden = served[0], None
        client = Client(server.url, name, self.plan.limits.request)
        environment = {**group.environment, **self.subject.environment}
        return Running(group, self.plan, server, client, golden, self.subject.base, environment, self._kept)

    def _model(self, name: str) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="seatrial-smoke-models-"))
            self._scratch.chmod(0o755)
        folder = self._scratch / name
        if not folder.exists():
            write_model(name, folder)
        if folder_sha256(folder) != read_golden(name)["model_sha256"]:
            raise SetupError(f"the recipe of {name} no longer makes the model that its golden answers are for")
        return folder


def served_names(url: str) -> list[str]:
    """Return the names of the models that a server serves."""
    client = Client(url, "", 30)
    try:
        names = [str(entry["id"]) for entry in client.get("/v1/models").json()["data"]]
    except (TrialError, ValueError, KeyError) as error:
        raise SetupError(f"{url} does not list its models: {error}") from None
    finally:
        client.close()
    if not names:
        raise SetupError(f"{url} serves no model")
    return names
