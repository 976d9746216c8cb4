"""The line of a log that says why a server died."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from smoke_tests.logs import tail, telling_line, tracebacks  # noqa: E402

WORKER = "(Worker pid=18085) ERROR 11-30 22:10:58 [multiproc_executor.py:1047] "
CORE = "(EngineCore pid=17976) ERROR 11-30 22:10:58 [core.py:1348] "
DIED = f"""\
(APIServer pid=17000) INFO:     Application startup complete.
{WORKER}WorkerProc hit an exception.
{WORKER}Traceback (most recent call last):
{WORKER}  File "executor.py", line 1039, in worker_busy_loop
{WORKER}    output = func(*args, **kwargs)
{WORKER}RuntimeError: chunk_gated_delta_rule_cpu: initial_state dtype mismatch
{WORKER}
{CORE}RuntimeError: Worker failed with error 'initial_state dtype mismatch', please check the stack trace above
(APIServer pid=1) ERROR 11-30 22:10:58 [async_llm.py:744] vllm.v1.engine.exceptions.EngineDeadError: EngineCore ...
(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error
(APIServer pid=1) ZeroDivisionError: something that came after the engine's death
"""


def test_the_cause_and_not_its_consequences() -> None:
    assert telling_line(DIED) == "RuntimeError: chunk_gated_delta_rule_cpu: initial_state dtype mismatch"
    assert tracebacks(DIED) == [3]


def test_colours_hide_nothing() -> None:
    coloured = "".join(f"\x1b[0;36m{line[:20]}\x1b[0;0m{line[20:]}\n" for line in DIED.splitlines())
    assert telling_line(coloured) == telling_line(DIED)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("INFO: all is well\nApplication startup complete.\n", ""),
        ("Traceback (most recent call last):\nModuleNotFoundError: No module named 'x'\n", "ModuleNotFoundError: No"),
        (
            "(EngineCore pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
            "RuntimeError: E",
        ),
        ("!!!!!!! Segfault encountered !!!!!!!\n", "!!!!!!! Segfault"),
        ("torch._dynamo.exc.TorchRuntimeError: shapes\n", "torch._dynamo.exc.TorchRuntimeError: shapes"),
        ("vllm: error: unrecognized arguments: --dtyp\n", "vllm: error: unrecognized"),
    ],
)
def test_other_logs(log: str, line: str) -> None:
    assert telling_line(log).startswith(line)
    assert bool(telling_line(log)) == bool(line)


def test_a_validator_says_more_than_its_wrapper() -> None:
    log = (
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
        "(APIServer pid=1)   Value error, float16 cannot be used: pass --dtype bfloat16 [type=value_error]\n"
    )
    assert telling_line(log).startswith("Value error, float16 cannot be used")


def test_the_tail_is_bounded() -> None:
    assert len(tail("x" * 300 + "\n" + "y\n" * 1000).splitlines()) == 200
    assert len(tail("z" * 100_000)) == 40_000
