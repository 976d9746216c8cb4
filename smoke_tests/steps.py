"""What a server's engine did between two looks at /metrics: how many steps, and how many tokens each of them gave.

vLLM counts a step when it gives tokens: a decoding request counts one, a prompt counts its tokens and one more in the
step that ends it; a step that computes only a part of a prompt is not counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from smoke_tests.client import Client
from smoke_tests.servers import TrialError

SAMPLE = re.compile(r"^(?P<name>vllm:\w+)\{(?P<labels>.*)\} (?P<value>\S+)$")
EDGE = re.compile(r'\ble="([^"]+)"')
BLOCKS = re.compile(r'\bnum_gpu_blocks="(\d+)"')
HISTOGRAM = "vllm:iteration_tokens_total"


@dataclass(frozen=True, slots=True)
class Steps:
    """Counters of the engine since it started, or between two looks."""

    count: int
    """Steps that gave tokens."""
    tokens: int
    """Tokens of these steps: computed prompt tokens and generated ones."""
    up_to: tuple[tuple[float, int], ...]
    """Per bucket its upper edge and the steps at or below it."""
    finished: int
    """Requests that ended."""
    preempted: int
    blocks: int
    """Blocks of the cache; a constant."""

    def since(self, before: Steps) -> Steps:
        """Return what happened after an earlier look."""
        return Steps(
            self.count - before.count,
            self.tokens - before.tokens,
            tuple((edge, now - then) for (edge, now), (_, then) in zip(self.up_to, before.up_to, strict=True)),
            self.finished - before.finished,
            self.preempted - before.preempted,
            self.blocks,
        )

    def of_size(self, tokens: int) -> int:
        """Return how many steps fell into the bucket that holds this number of tokens."""
        for (low, below), (high, now) in pairwise(((0.0, 0), *self.up_to)):
            if low < tokens <= high:
                return now - below
        return 0


def look(client: Client) -> Steps:
    """Return the engine's counters.

    Raises:
        TrialError: /metrics does not hold them.
    """
    response = client.get("/metrics")
    sums = {"count": 0.0, "sum": 0.0, "finished": 0.0, "preempted": 0.0}
    edges: dict[float, float] = {}
    blocks = 0
    found = set()
    for line in response.text.splitlines():
        if not (match := SAMPLE.match(line)):
            continue
        name, labels, value = match.group("name", "labels", "value")
        if name == f"{HISTOGRAM}_bucket" and (edge := EDGE.search(labels)):
            edges[float(edge[1])] = edges.get(float(edge[1]), 0.0) + float(value)
        elif name == "vllm:cache_config_info" and (size := BLOCKS.search(labels)):
            blocks = int(size[1])
            found.add("blocks")
        elif key := KEYS.get(name):
            sums[key] += float(value)
            found.add(key)
    if lost := sorted({"blocks", *KEYS.values()} - found):
        raise TrialError(f"/metrics (HTTP {response.status_code}) does not say: {', '.join(lost)}")
    return Steps(
        int(sums["count"]),
        int(sums["sum"]),
        tuple((edge, int(edges[edge])) for edge in sorted(edges)),
        int(sums["finished"]),
        int(sums["preempted"]),
        blocks,
    )


def total(client: Client, *names: str) -> float:
    """Return the sum of some samples of /metrics, over all their labels.

    Raises:
        TrialError: /metrics holds none of them.
    """
    response = client.get("/metrics")
    found = [match for line in response.text.splitlines() if (match := SAMPLE.match(line)) and match["name"] in names]
    if not found:
        raise TrialError(f"/metrics (HTTP {response.status_code}) does not say: {', '.join(names)}")
    return sum(float(match["value"]) for match in found)


def pending(client: Client) -> int:
    """Return how many requests the engine has that have not ended."""
    return int(total(client, "vllm:num_requests_running", "vllm:num_requests_waiting"))


KEYS = {
    f"{HISTOGRAM}_count": "count",
    f"{HISTOGRAM}_sum": "sum",
    "vllm:request_success_total": "finished",
    "vllm:num_preemptions_total": "preempted",
}
"""Samples that are added up over their labels."""
