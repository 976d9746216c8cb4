"""Load vLLM's extensions one by one and print what they register; runs inside an image, with what is there.

Nothing of seatrial is imported here: the file's text is handed to the image's own interpreter. Each extension is
loaded in a child of a process that has imported torch, because two builds of the same operators exclude each other
and because a crash must not take the others along. Argument: JSON, `{"extensions": {module name: path}}`. Writes
one line of JSON after the mark.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

MARK = "seatrial-extensions: "


def operators() -> set[str]:
    """Return the names of all operators that torch knows now."""
    torch: Any = importlib.import_module("torch")
    return set(torch._C._dispatch_get_all_op_names())


def load_by_name(name: str, path: str) -> None:
    """Import an extension as the import system would, without running its package's own start."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise ImportError(f"{path} is not named as a module")
    importlib.util.module_from_spec(spec)


class Listener(logging.Handler):
    """Keep warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message."""
        self.heard.append(record.getMessage())


def through_platform() -> dict[str, Any]:
    """Let vLLM's own platform choose and load, and return what it says of itself and what it warned about."""
    importlib.import_module("vllm.logger")
    listener = Listener()
    logging.getLogger("vllm").addHandler(listener)
    platform: Any = importlib.import_module("vllm.platforms").current_platform
    platform.import_kernels()
    return {
        "platform": type(platform).__name__,
        "device_type": str(getattr(platform, "device_type", "")),
        "warnings": listener.heard,
    }


def in_child(action: Callable[[], Any]) -> dict[str, Any]:
    """Run an action in a forked child; return its answer or error, the operators it added and how it ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _be_child(action, reader, writer)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    result: dict[str, Any] = json.loads(text) if text else {}
    if os.WIFSIGNALED(status):
        result["signal"] = os.WTERMSIG(status)
    elif not text:
        result["error"] = f"the process ended with status {os.waitstatus_to_exitcode(status)}"
    return result


def _be_child(action: Callable[[], Any], reader: int, writer: int) -> None:
    """Carry out the action and leave the process without running anything of the parent's."""
    try:
        os.close(reader)
        os.dup2(2, 1)
        before = operators()
        try:
            answer: dict[str, Any] = {"answer": action()}
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-2000:]}
        answer["operators"] = sorted(operators() - before)
        with os.fdopen(writer, "w") as stream:
            json.dump(answer, stream)
    finally:
        os._exit(0)


def cpu_flags() -> list[str]:
    """Return the instruction sets that the host's processor offers, as Linux names them."""
    try:
        with open("/proc/cpuinfo") as stream:  # noqa: PTH123 - the shortest start matters in the image
            lines = [line for line in stream if line.lower().startswith(("flags", "features"))]
    except OSError:
        return []
    return sorted(lines[0].split(":", 1)[1].split()) if lines else []


def main() -> None:
    """Write one line of JSON about every extension that the argument names."""
    wanted: dict[str, str] = json.loads(sys.argv[1])["extensions"]
    seen: dict[str, Any] = {"flags": cpu_flags(), "extensions": {}}
    try:
        seen["torch"] = str(importlib.import_module("torch").__version__)
    except BaseException as error:
        seen["torch_error"] = f"{type(error).__name__}: {error}"
    else:
        for name, path in sorted(wanted.items()):
            seen["extensions"][name] = in_child(lambda name=name, path=path: load_by_name(name, path))  # type: ignore[misc]
        seen["platform"] = in_child(through_platform)
    sys.stdout.write(f"\n{MARK}{json.dumps(seen)}\n")


if __name__ == "__main__":
    main()
