"""What is kept of a server that hangs or dies: processes, what they wait for, device, requests under way."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BODY = 400
"""Characters of a request's body that are kept."""

LOOK = 0.2
"""Seconds between two looks at the requests that are open."""

LATE = 0.8
"""Share of a request's limit after which evidence is taken: while it is open, and before it is given up."""

REQUESTS = 8
"""Requests that are kept of those that were under way together."""

WANTED = ("State", "Threads", "VmRSS", "VmSwap", "SigIgn")
"""Lines of /proc/PID/status that are kept."""

TOOLS: Mapping[str, Sequence[Sequence[str]]] = {
    "cuda": (("nvidia-smi",),),
    "rocm": (("amd-smi", "monitor"), ("rocm-smi",)),
    "xpu": (("xpu-smi", "discovery"), ("xpu-smi", "ps")),
}
"""What says how a device is, by kind; all that are installed are asked."""

DEVICE_LIMIT = 20.0
"""Seconds that such a tool gets: it hangs too when the driver does."""

SIGNALLED = 128
"""An exit code above it is this plus the signal, as shells and container engines have it."""


@dataclass
class Sent:
    """One request that was sent."""

    method: str
    path: str
    body: str
    began: float
    ended: str = ""
    """How it ended badly."""
    seconds: float = 0.0


@dataclass
class Ledger:
    """Which requests are under way, and which of the current case broke off."""

    open: list[Sent] = field(default_factory=list)
    broken: list[Sent] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def entry(self, method: str, path: str, body: Any = None) -> Iterator[None]:
        """Have a request in the ledger for as long as the block lasts; one that raises stays, as broken."""
        text = "" if body is None else json.dumps(body)
        sent = Sent(method, path, shortened(text), time.monotonic())
        with self.lock:
            self.open.append(sent)
        try:
            yield
        except Exception as error:
            sent.ended = f"{type(error).__name__}: {error}"[:200]
            raise
        finally:
            sent.seconds = time.monotonic() - sent.began
            with self.lock:
                self.open.remove(sent)
                if sent.ended:
                    self.broken.append(sent)

    def oldest(self) -> float:
        """Return for how many seconds the oldest open request is under way; 0 when none is."""
        with self.lock:
            return time.monotonic() - min((sent.began for sent in self.open), default=time.monotonic())

    def forget(self) -> None:
        """Forget what broke off; a new case begins."""
        with self.lock:
            self.broken.clear()

    def facts(self) -> list[dict[str, Any]]:
        """Return the requests that are under way or broke off, the oldest first."""
        now = time.monotonic()
        with self.lock:
            found = sorted([*self.broken, *self.open], key=lambda sent: sent.began)
        facts: list[dict[str, Any]] = []
        for sent in found[:REQUESTS]:
            seconds = sent.seconds if sent.ended else now - sent.began
            entry = {"method": sent.method, "path": sent.path, "body": sent.body, "ended": sent.ended}
            facts.append({**entry, "seconds": round(seconds, 3)})
        if len(found) > REQUESTS:
            facts[-1]["ended"] += f" (and {len(found) - REQUESTS} more requests like it)"
        return facts


class Watch(threading.Thread):
    """Takes evidence while a request is still open: once its client gives up, the server may drop all trace of it."""

    def __init__(self, ledger: Ledger, after: float, take: Callable[[], str]) -> None:
        super().__init__(name="smoke-watch", daemon=True)
        self._ledger = ledger
        self._after = after
        self._take = take
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._taken = ""

    def run(self) -> None:
        """Look at the ledger until the watch is over."""
        while not self._over.wait(LOOK):
            if self._ledger.oldest() > self._after:
                with self._lock:
                    self._taken = self._taken or self._take()

    def taken(self) -> str:
        """Return what was taken in this case, empty when no request was open for so long."""
        with self._lock:
            return self._taken

    def forget(self) -> None:
        """Forget it; a new case begins."""
        with self._lock:
            self._taken = ""

    def end(self) -> None:
        """End the watch."""
        self._over.set()
        if self.is_alive():
            self.join()


def shortened(text: str) -> str:
    """Return the beginning of a text, with its length when something is left out."""
    return text if len(text) <= BODY else f"{text[:BODY]}... ({len(text)} characters)"


def process_text(pid: int, limit: float) -> str:
    """Return what can be known of one process: command, state, what it waits for, its stacks.

    Args:
        limit: seconds that py-spy gets.
    """
    status = status_of(pid)
    if not status:
        return f"== process {pid}: it has ended"
    inner = status.get("NSpid", "").split()[-1:]
    within = f" ({inner[0]} in its container)" if inner and inner[0] != str(pid) else ""
    lines = [f"== process {pid}{within}: {command_of(pid)}"]
    lines.append(", ".join(f"{name} {status[name]}" for name in WANTED if name in status))
    lines.append(f"threads wait in: {waiting(pid)}")
    lines.append(kernel_stack(pid))
    if is_python(pid):
        lines.append(python_stack(pid, limit, stopped=status.get("State", "").startswith(("T", "t"))))
    return "\n".join(lines)


def status_of(pid: int) -> dict[str, str]:
    """Return /proc/PID/status by name; nothing once the process has ended."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: " ".join(value.split()) for name, _, value in pairs}


def waiting(pid: int) -> str:
    """Return where in the kernel the threads of a process sleep, with how many each."""
    counts: Counter[str] = Counter()
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        try:
            counts[(thread / "wchan").read_text(encoding="utf-8").strip().strip("0") or "nowhere"] += 1
        except OSError as error:
            counts[f"(not readable: {error.strerror})"] += 1
    return ", ".join(f"{place} x {count}" for place, count in counts.most_common()) or "(gone)"


def kernel_stack(pid: int) -> str:
    """Return the kernel's stack of the main thread; only root may read it."""
    try:
        text = Path(f"/proc/{pid}/stack").read_text(encoding="utf-8").strip()
    except OSError as error:
        return f"kernel stack: not readable ({error.strerror})"
    places = [re.sub(r"^\[<\w+>\] ", "", line) for line in text.splitlines()]
    return f"kernel stack: {' < '.join(places) or '(empty: it runs)'}"


def is_python(pid: int) -> bool:
    """Tell whether a process is a Python interpreter; one whose program cannot be read may be one."""
    try:
        return "python" in Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return True


def find_py_spy() -> str | None:
    """Return the path of py-spy: beside this interpreter, or on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.exists() else shutil.which("py-spy")


def python_stack(pid: int, limit: float, *, stopped: bool) -> str:
    """Return py-spy's stacks of one process, or why there are none; a stopped process is read without stopping it."""
    tool = find_py_spy()
    if tool is None:
        return "py-spy is not installed: python -m pip install py-spy"
    argv = [tool, "dump", "--pid", str(pid), *(["--nonblocking"] if stopped else [])]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"py-spy gave no stack within {limit:.0f} s"
    return done.stdout.strip() if done.returncode == 0 else f"no stack: {done.stderr.strip()[-300:]}"


def command_of(pid: int) -> str:
    """Return the command line of a process, shortened; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200].strip()
    except OSError:
        return ""


def device_text(kind: str) -> str:
    """Return what the device's own tools say of it, or that there is no device or no tool."""
    if kind not in TOOLS:
        return f"no device: the platform runs on the {kind.upper()}"
    parts = []
    for argv in TOOLS[kind]:
        if shutil.which(argv[0]) is None:
            parts.append(f"{argv[0]} is not installed")
            continue
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=DEVICE_LIMIT, check=False)
            parts.append(f"$ {' '.join(argv)}\n{(done.stdout or done.stderr).strip()[-8000:]}")
        except (OSError, subprocess.TimeoutExpired) as error:
            parts.append(f"$ {' '.join(argv)}\n{type(error).__name__}: {error}")
    return "\n".join(parts)


def ending_of(code: int, *, oom_killed: bool | None) -> dict[str, Any]:
    """Return how a server's first process ended.

    Args:
        code: exit code; negative, or above 128, when a signal ended it.
        oom_killed: what the engine or the kernel says; None where nobody can say.
    """
    number = -code if code < 0 else code - SIGNALLED
    try:
        name = signal.Signals(number).name if number > 0 else ""
    except ValueError:
        name = ""
    try:
        pattern = Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8").strip()
    except OSError:
        pattern = ""
    return {"exit_code": code, "signal": name, "oom_killed": oom_killed, "core_pattern": pattern}


def killed_for_memory() -> int:
    """Return how many processes of this machine the kernel has killed for memory since it booted."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


def machine_facts() -> dict[str, str]:
    """Return what the run ran on, in words that help to judge its times."""
    memory = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()[0].split()
    load = Path("/proc/loadavg").read_text(encoding="utf-8").split()[:3]
    kernel = Path("/proc/sys/kernel/osrelease").read_text(encoding="utf-8").strip()
    return {
        "memory": f"{int(memory[1]) / 2**20:.1f} GiB",
        "kernel": f"Linux {kernel}",
        "load at the start": " ".join(load),
        "python": sys.version.split()[0],
    }
