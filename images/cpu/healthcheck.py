"""Ask the server in this container whether it is healthy; exit 1 when it is not or does not answer.

The port is the one that the container's first process was started with.
"""

import sys
import urllib.error
import urllib.request
from pathlib import Path

DEFAULT_PORT = "8000"


def port_of(words: list[str]) -> str:
    """Return the value of `--port` among a command's words, in either spelling."""
    for index, word in enumerate(words):
        if word.startswith("--port="):
            return word.partition("=")[2]
        if word == "--port" and index + 1 < len(words):
            return words[index + 1]
    return DEFAULT_PORT


def main() -> int:
    """Return 0 when /health answers 200."""
    words = Path("/proc/1/cmdline").read_bytes().decode(errors="replace").split("\0")
    # Straight to this machine: a proxy in the environment is for other hosts.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port_of(words)}/health", timeout=4) as answer:
            return 0 if answer.status == 200 else 1
    except (OSError, ValueError, urllib.error.URLError):
        return 1


if __name__ == "__main__":
    sys.exit(main())
