"""Defects that only a running server shows: they came with upstream or with a fix, so that every digest is right.

Each is tried on a real server of the broken image, by the group of the basic profile that sees it and no other case.
Inspect runs before and has to find nothing; where it finds the fault, it is the cheaper check and the row says so.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import tomlkit

from seatrial.ports.engine import connect
from seatrial.ports.images import DockerImages
from seatrial.stages.smoke import expected_cases, run_smoke
from tests.faults.derive import Layer, derived
from tests.faults.good import Good
from tests.faults.judge import inspected, judged_by, quiet
from tests.faults.model import Fault, Judged
from tests.faults.seeds import STDLIB, Seed, gone, not_in_wheel


@contextmanager
def cut(good: Good, group: str, cases: tuple[str, ...]) -> Iterator[Path]:
    """Give a folder with the checkout's smoke tests whose basic profile is one group with these cases."""
    with tempfile.TemporaryDirectory(prefix="seatrial-faults-") as folder:
        root = Path(folder)
        shutil.copytree(
            good.shop.project.smoke_tests, root / "smoke_tests", ignore=shutil.ignore_patterns("__pycache__")
        )
        path = root / "smoke_tests" / "profiles.toml"
        table = tomlkit.parse(path.read_text()).unwrap()
        groups = [each for each in table["profiles"]["basic"]["groups"] if each["name"] == group]
        groups[0]["cases"] = [case for case in groups[0]["cases"] if case in cases]
        table["profiles"] = {"basic": {"groups": groups}}
        path.write_text(tomlkit.dumps(table))
        yield root


def judge_server(seed: Seed, group: str, cases: tuple[str, ...]) -> Callable[[Good], Judged]:
    """Inspect and smoke a derived image, and ask the gate about both reports."""

    def judge(good: Good) -> Judged:
        layer = good.layer()
        seed(layer)
        client = connect()
        plan = good.plan
        with cut(good, group, cases) as root, derived(client, good.blobs, layer, "fault") as (image, data):
            seen = inspected(good, DockerImages(client), image, layer, data, full=False, runs=True)
            base, platform = plan.lock.version, plan.platform.name
            tried = run_smoke(root, image, platform=platform, base=base, profile="basic", console=quiet())
            need = expected_cases(root / "smoke_tests", "basic", base, platform)
            needs = tuple(one if one.kind == "inspect" else need for one in good.policy.requirements)
            asked = replace(good, policy=good.policy.model_copy(update={"requirements": needs}))
            return judged_by(asked.decide(image, seen, tried), asked)

    return judge


def server(  # noqa: PLR0917 - a row of a table
    name: str,
    row: int,
    kind: str,
    case: str,
    words: tuple[str, ...],
    what: str,
    seed: Seed,
    *,
    ci: bool = False,
) -> Fault:
    """Return a fault that a server shows; `case` is `group/case`."""
    group, _, last = case.partition("/")
    cases = tuple(dict.fromkeys(("ready", "first-request", last)))
    if group == "qwen3-next-float16":
        cases = (last,)
    return Fault(name, row, kind, case, words, what, judge=judge_server(seed, group, cases), subject="server", ci=ci)


def upstream(name: str, old: str, new: str) -> Seed:
    """Change words in a file of vLLM as if upstream or a fix had."""
    return lambda layer: layer.upstream(name, old, new)


def as_released(name: str) -> Seed:
    """Ship a file of vLLM as upstream released it, with a build that knows of no fix for it."""

    def seed(layer: Layer) -> None:
        layer.installed(name, layer.pristine(name))
        layer.expect(name)

    return seed


def appended(name: str, text: str) -> Seed:
    """Add lines to a file of another distribution, as its makers had released it."""
    return lambda layer: layer.installed(name, layer.read(f"{layer.site}/{name}") + text.encode())


GREEDY = "return logits.argmax(dim=-1).view(-1)"
ADD = "        # Validate the request_id type.\n"
APP = ") -> FastAPI:\n    if supported_tasks is None:\n"

SERVER_FAULTS: tuple[Fault, ...] = (
    server(
        "server-dies-first-request",
        36,
        "first request",
        "qwen3/first-request",
        ("server",),
        "the server says ready, and the first request kills the engine",
        upstream("vllm/v1/engine/core.py", ADD, f"        import os\n\n        os._exit(66)\n{ADD}"),
        ci=True,
    ),
    server(
        "server-raises-first-request",
        36,
        "first request",
        "qwen3/first-request",
        ("500",),
        "the server says ready, and the first request raises in the engine",
        upstream(
            "vllm/v1/sample/sampler.py",
            GREEDY,
            "raise RuntimeError('no kernel image is available')",
        ),
    ),
    server(
        "server-exclamation-marks",
        37,
        "wrong output",
        "qwen3/golden",
        ("token",),
        "ready and 200, but every token is the first of the vocabulary",
        upstream("vllm/v1/sample/sampler.py", GREEDY, "return logits.argmax(dim=-1).view(-1) * 0"),
        ci=True,
    ),
    server(
        "server-wrong-under-load",
        37,
        "wrong output",
        "qwen3/batch-65",
        ("alone",),
        "right alone, wrong as soon as more than sixteen are served together",
        upstream(
            "vllm/v1/sample/sampler.py",
            GREEDY,
            "return logits.argmax(dim=-1).view(-1) * (0 if logits.shape[0] > 16 else 1)",
        ),
    ),
    server(
        "server-not-a-number",
        37,
        "wrong output",
        "qwen3/logprobs",
        ("finite",),
        "ready and 200, but the log probabilities are not numbers",
        upstream(
            "vllm/v1/sample/sampler.py",
            "return logits.log_softmax(dim=-1, dtype=torch.float32)",
            "return logits.log_softmax(dim=-1, dtype=torch.float32) * float('nan')",
        ),
    ),
    server(
        "server-app-crashes",
        20,
        "stale",
        "qwen3/ready",
        ("gone_since",),
        "the engine is healthy, and the server crashes while it builds its app",
        upstream(
            "vllm/entrypoints/openai/api_server.py",
            APP,
            f") -> FastAPI:\n    from vllm.entrypoints import gone_since  # noqa\n\n{APP.partition(chr(10))[2]}",
        ),
        ci=True,
    ),
    server(
        "server-answers-500",
        15,
        "dependency",
        "qwen3/first-request",
        ("500",),
        "the web framework's new release answers every request with 500",
        lambda layer: layer.edited(
            "starlette/responses.py", "        return json.dumps(\n", "        return json.dumps_to_bytes(\n"
        ),
    ),
    server(
        "server-hidden-download",
        32,
        "run contract",
        "qwen3/ready",
        ("URLError",),
        "a dependency asks the network when it is imported, and there is none",
        appended(
            "uvicorn/__init__.py",
            "\nfrom urllib import request as _request\n\n_request.urlopen('http://models.example/list', timeout=5)\n",
        ),
    ),
    server(
        "server-writes-beside-code",
        31,
        "run contract",
        "qwen3/ready",
        ("vllm-state",),
        "the server keeps its state beside its code, which only root may write",
        appended(
            "uvicorn/__init__.py",
            "\nfrom pathlib import Path as _Path\n\n_Path('/opt/vllm/vllm-state').write_text('x')\n",
        ),
    ),
    server(
        "server-stdlib-part-gone",
        7,
        "library",
        "qwen3/ready",
        ("resource_tracker",),
        "a part of Python's own library was slimmed away that only the server imports",
        gone(f"{STDLIB}/multiprocessing/resource_tracker.py"),
    ),
    server(
        "server-library-not-in-wheel",
        23,
        "JIT",
        "qwen3/structured-json",
        ("xgrammar",),
        "a module says that it is built, and cannot be imported when it is first needed",
        not_in_wheel("xgrammar/libxgrammar_bindings.so"),
    ),
    server(
        "server-dtype",
        38,
        "dtype",
        "qwen3-next-float16/serves-or-refuses",
        ("float16",),
        "right in one data type, and dead at the first request in the other: upstream's own, with no fix",
        as_released("vllm/platforms/cpu.py"),
    ),
    server(
        "server-one-token",
        37,
        "wrong output",
        "qwen3-next/one-token",
        ("token",),
        "wrong text for prompts of one token after another request: upstream's own, with no fix",
        as_released("vllm/v1/attention/backends/gdn_attn.py"),
    ),
)
