"""vLLM's extensions: each loads by name inside the image and registers its operators.

`import vllm` hides a broken extension behind a warning, so each is loaded on its own, in the image, by the image's
interpreter, with no network; and vLLM's own platform is asked to choose and load as well.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from seatrial.ports.images import OneRun
from seatrial.stages.inspect.builds import accelerators
from seatrial.stages.inspect.load_script import MARK
from seatrial.stages.inspect.subject import Excused, Found, Image

LOAD_SECONDS = 240.0
"""Limit for the whole run: importing torch from a cold disk takes most of it."""

_MODULE = re.compile(r"^(?P<stem>[^.]+)(?:\.abi3|\.cpython-[^.]+)?\.so$")


@dataclass(frozen=True, slots=True)
class Variant:
    """One of several builds of the same operators, of which vLLM loads the one that fits the host's processor."""

    module: str
    flags: frozenset[str]
    """Processor flags without which it must not be loaded."""
    no_init: bool
    """The file has no init function under its own name: importing it registers the operators and then fails."""


VARIANTS = (
    Variant("vllm._C", frozenset({"avx512f", "avx512_bf16"}), no_init=False),
    Variant("vllm._C_AVX512", frozenset({"avx512f"}), no_init=True),
    Variant("vllm._C_AVX2", frozenset({"avx2"}), no_init=True),
)
"""Order of choice in vLLM's `CpuPlatform.import_kernels` (base 0.28.0). They are variants only where more than one is
there; a `vllm._C` alone has to load everywhere."""

NO_INIT = "dynamic module does not define module export function"
"""Python's words when a library has no init function of the module's name; loaded and registered it is all the same."""


def extension_modules(image: Image) -> dict[str, str]:
    """Return vLLM's extension modules in the image: dotted name to absolute path."""
    vllm = image.python.vllm
    if vllm is None:
        return {}
    modules: dict[str, str] = {}
    for entry in image.root.files():
        if entry.path.startswith(f"{vllm.site}/vllm/") and (match := _MODULE.match(posixpath.basename(entry.path))):
            folder = posixpath.dirname(entry.path)[len(vllm.site) + 1 :].replace("/", ".")
            if not match["stem"].startswith("lib"):
                modules[f"{folder}.{match['stem']}"] = entry.path
    return modules


def check_extensions(image: Image) -> Found:
    """Load every extension in a container of the image and compare what they register."""
    modules = extension_modules(image)
    if not modules:
        return Found(("the image holds no vLLM extension: no native module below vllm/",), {"extensions": []})
    run = _loading(image, modules)
    if run.status is None:
        return Found(
            (f"loading the extensions did not end within {LOAD_SECONDS:.0f} s",), {"stderr": run.stderr[-2000:]}
        )
    seen = _answer(run.stdout)
    if seen is None:
        last = next((line for line in reversed(run.stderr.splitlines()) if line.strip()), "it printed nothing")
        return Found(
            (f"{image.python.interpreter} ended with status {run.status} in the image: {last.strip()}",),
            {"stderr": run.stderr[-2000:]},
        )
    if "torch_error" in seen:
        return Found((f"torch does not import in the image: {seen['torch_error']}",), {"torch": None})
    return _judge(image, modules, seen)


def loaded(image: Image) -> dict[str, Any] | None:
    """Return what the extensions said when they were loaded, None when they said nothing; the image runs once."""
    modules = extension_modules(image)
    seen = _answer(_loading(image, modules).stdout) if modules else None
    return None if seen is None or "torch_error" in seen else seen


def _loading(image: Image, modules: dict[str, str]) -> OneRun:
    script = resources.files(__package__).joinpath("load_script.py").read_text()
    argument = json.dumps({"extensions": modules})
    return image.run((image.python.interpreter, "-c", script, argument), LOAD_SECONDS)


def _answer(stdout: str) -> dict[str, Any] | None:
    lines = [line for line in stdout.splitlines() if line.startswith(MARK)]
    answer: dict[str, Any] | None = json.loads(lines[-1][len(MARK) :]) if lines else None
    return answer


def _judge(image: Image, modules: dict[str, str], seen: dict[str, Any]) -> Found:
    flags = frozenset(seen["flags"])
    present = [variant for variant in VARIANTS if variant.module in modules]
    variants = {variant.module: variant for variant in present} if len(present) > 1 else {}
    excused = image.excused("extensions")
    unfit: dict[str, str] = {}
    problems: list[str] = []
    registered: dict[str, list[str]] = {}
    for name in sorted(modules):
        result: dict[str, Any] = seen["extensions"].get(name, {"error": "no answer"})
        variant = variants.get(name)
        if variant is not None and variant.flags - flags:
            unfit[name] = f"this host's processor lacks {', '.join(sorted(variant.flags - flags))}"
            continue
        if trouble := _trouble(result, variant):
            subject = f"{name}: {trouble}"
            if not excused.allows(subject):
                problems.append(f"{name} does not load: {trouble}")
            continue
        registered[name] = result["operators"]
    if image.expected is not None and not image.expected.operators:
        problems.append("there is no list of operators to compare with (images/operators/, seatrial lock-operators)")
    problems += [
        *_operator_problems(image, modules, registered, excused),
        *_platform_problems(image, seen, registered, variants),
    ]
    platform = seen["platform"].get("answer", {})
    return Found(
        tuple(problems),
        {
            "torch": seen["torch"],
            "operators": registered,
            "operators_compared": bool(image.expected and image.expected.operators),
            "not_run_on_this_host": unfit,
            "platform": platform,
            **excused.measured(),
        },
    )


def _trouble(result: dict[str, Any], variant: Variant | None) -> str:
    if "signal" in result:
        return f"the process was killed by signal {result['signal']}"
    error = str(result.get("error", ""))
    if variant is not None and variant.no_init and NO_INIT in error:
        return "" if result["operators"] else "it has no init function and registers no operator"
    return error


def _operator_problems(
    image: Image, modules: dict[str, str], registered: dict[str, list[str]], excused: Excused
) -> Iterator[str]:
    expected = image.expected.operators if image.expected else {}
    for name, found in registered.items():
        if name not in expected:
            continue
        lost = sorted(set(expected[name]) - set(found))
        more = sorted(set(found) - set(expected[name]))
        if lost:
            yield f"{name} does not register {len(lost)} operators that it should: {', '.join(lost[:5])}"
        if more and not excused.allows(f"{name}: more operators"):
            yield f"{name} registers {len(more)} operators that nobody expects: {', '.join(more[:5])}"
    for name in sorted(set(expected) - set(registered)):
        if name not in modules:
            yield f"{name} is one of the base's extensions and is not in the image"
        elif name not in {variant.module for variant in VARIANTS}:
            yield f"{name} should register operators and did not load"


def _platform_problems(
    image: Image, seen: dict[str, Any], registered: dict[str, list[str]], variants: dict[str, Variant]
) -> Iterator[str]:
    result = seen["platform"]
    if "answer" not in result:
        yield f"vLLM's platform could not be asked: {result.get('error') or _trouble(result, None)}"
        return
    answer = result["answer"]
    if accelerators(image) != {"cpu"}:
        return  # without its device an accelerator's platform has nothing to recognise
    if answer["device_type"] != "cpu":
        yield f"vLLM takes itself for {answer['platform']} ({answer['device_type'] or 'no device'}), not for a CPU"
    yield from (f"vLLM warns while it loads: {line}" for line in answer["warnings"] if "Failed to import" in line)
    choices = [name for name in (variants or ["vllm._C"]) if name in registered]
    if not choices:
        yield "none of the builds of vLLM's operators can be used on this host"
    elif not set(registered[choices[0]]) <= set(result["operators"]):
        yield f"vLLM itself did not load {choices[0]}, which is the one for this host"
