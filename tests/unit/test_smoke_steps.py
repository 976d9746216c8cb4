"""What a server's counters say about the steps of its engine."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from smoke_tests.client import Client
from smoke_tests.servers import TrialError
from smoke_tests.steps import Steps, look, pending, total

TEXT = """# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 3.0
vllm:iteration_tokens_total_bucket{engine="0",le="8.0",model_name="m"} 3.0
vllm:iteration_tokens_total_bucket{engine="0",le="64.0",model_name="m"} 13.0
vllm:iteration_tokens_total_bucket{engine="0",le="128.0",model_name="m"} 14.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} 14.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 14.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 708.0
vllm:request_success_total{engine="0",finished_reason="stop"} 1.0
vllm:request_success_total{engine="0",finished_reason="length"} 4.0
vllm:num_preemptions_total{engine="0"} 0.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="336",num_gpu_blocks_override="None"} 1.0
"""


def client(text: str) -> Client:
    return cast(Client, SimpleNamespace(get=lambda _path: SimpleNamespace(text=text, status_code=200)))


def test_the_counters_are_read() -> None:
    found = look(client(TEXT))
    assert (found.count, found.tokens, found.finished, found.preempted, found.blocks) == (14, 708, 5, 0, 336)


@pytest.mark.parametrize(("tokens", "steps"), [(1, 3), (2, 0), (8, 0), (64, 10), (65, 1), (128, 1), (1000, 0)])
def test_steps_are_told_apart_by_size(tokens: int, steps: int) -> None:
    assert look(client(TEXT)).of_size(tokens) == steps


def test_what_happened_between_two_looks() -> None:
    before = Steps(4, 100, ((1.0, 3), (8.0, 3), (64.0, 3), (128.0, 4), (float("inf"), 4)), 1, 0, 336)
    done = look(client(TEXT)).since(before)
    assert (done.count, done.tokens, done.finished, done.blocks) == (10, 608, 4, 336)
    assert (done.of_size(1), done.of_size(64), done.of_size(65)) == (0, 10, 0)


@pytest.mark.parametrize(
    ("lost", "says"), [("iteration_tokens_total_sum", "sum"), ("cache_config", "blocks"), ("preemptions", "preempted")]
)
def test_counters_that_are_not_there_are_named(lost: str, says: str) -> None:
    lines: list[Any] = [line for line in TEXT.splitlines() if lost not in line]
    with pytest.raises(TrialError, match=f"does not say: {says}"):
        look(client("\n".join(lines)))


def test_samples_are_added_up_over_their_labels() -> None:
    assert total(client(TEXT), "vllm:request_success_total") == 5
    with pytest.raises(TrialError, match=r"/metrics \(HTTP 200\) does not say: vllm:drafts"):
        total(client(TEXT), "vllm:drafts")


def test_pending_are_those_that_run_and_those_that_wait() -> None:
    lines = ['vllm:num_requests_running{engine="0"} 2.0', 'vllm:num_requests_waiting{engine="0"} 3.0']
    assert pending(client("\n".join(lines))) == 5
