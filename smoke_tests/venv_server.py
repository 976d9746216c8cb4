"""A server from a virtual environment: `PATH/bin/vllm serve`, in a session of its own, on loopback."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from smoke_tests.evidence import killed_for_memory
from smoke_tests.servers import POLL, Server, SetupError, alive, kill

PR_SET_PDEATHSIG = 1
KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TMPDIR")
"""Variables of this process that the server inherits; all others could change what is tried."""


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def die_with_parent() -> None:
    """Ask Linux to send SIGTERM to this process when its parent is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class VenvServer(Server):
    """One `vllm serve` with an empty home: no cache of an earlier run is seen."""

    def __init__(
        self, name: str, venv: Path, model: Path, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        super().__init__(name)
        self._program = venv / "bin" / "vllm"
        if not self._program.exists():
            raise SetupError(f"{self._program} does not exist: is vLLM installed in this environment?")
        self._venv = venv
        self._model = model
        self._arguments = arguments
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._home: Path | None = None
        self._killed_before = killed_for_memory()

    def start(self) -> None:
        """Start the server as leader of a new session; it ends when this process is killed."""
        self._home = Path(tempfile.mkdtemp(prefix="seatrial-smoke-home-"))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {
            "HOME": str(self._home),
            "PATH": f"{self._venv / 'bin'}:{environment.get('PATH', os.defpath)}",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONUNBUFFERED": "1",
            **self._environment,
        }
        argv = [str(self._program), "serve", str(self._model), "--host", "127.0.0.1", "--port", str(port)]
        with (self._home / "server.log").open("wb") as log:
            self.started = time.monotonic()
            self._process = subprocess.Popen(
                [*argv, *self._arguments],
                cwd=self._home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 (this process has one thread when a server starts)
            )

    def exit_code(self) -> int | None:
        """Return the exit code of `vllm serve`."""
        return self._process.poll() if self._process else None

    def oom_killed(self) -> bool | None:
        """Tell whether the kernel killed something for memory since the start, where SIGKILL ended the server."""
        return self.exit_code() == -signal.SIGKILL and killed_for_memory() > self._killed_before

    def log(self) -> str:
        """Return stdout and stderr of all its processes."""
        if self._home is None or not (self._home / "server.log").exists():
            return ""
        return (self._home / "server.log").read_text(encoding="utf-8", errors="replace")

    def pids(self) -> list[int]:
        """Return the processes of its session that run."""
        if self._process is None:
            return []
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == self._process.pid and fields[0] not in ("Z", "X"):
                    found.append(int(entry.name))
        return sorted(found)

    def ask_to_end(self) -> None:
        """Send SIGTERM to `vllm serve` alone, as an init system does."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End what is left of the session, politely and then by force, and remove the home."""
        if self._process is not None:
            for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
                kill(self.pids(), number)
                until = time.monotonic() + patience
                while alive(self.pids()) and time.monotonic() < until:
                    self._process.poll()
                    time.sleep(POLL)
            self._process.wait(5)
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
