"""Makes the golden answers with Hugging Face transformers, and proves that they see a broken model.

    python -m smoke_tests.models.golden            write smoke_tests/models/golden/<model>.json
    python -m smoke_tests.models.golden --check    compare with the committed files, write nothing
    python -m smoke_tests.models.golden --prove    break the model in many small ways; each must be seen

Needs torch (CPU) and transformers of the versions in REQUIREMENTS; nothing is fetched.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from smoke_tests.compare import Comparison, compare_answer, compare_prompt
from smoke_tests.models import faults, prompts
from smoke_tests.models.recipes import RECIPES, write_model

REQUIREMENTS = ("torch==2.13.0", "transformers==5.24.0")
"""What the committed files were made with."""

FOLDER = Path(__file__).parent / "golden"
TOP = 5
"""Log probabilities that are kept a step."""

SAFETY = 2.0
"""Tolerance over the reference's own largest difference: a server may round at other places than the reference."""

FLOOR = 0.01
"""Smallest tolerance; float32 sums in another order differ by less than 1e-3."""

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def load(folder: Path, dtype: torch.dtype) -> Any:
    """Load a model in one data type, with plain attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def all_prompts(folder: Path) -> dict[str, tuple[list[int], int]]:
    """Return per prompt its token ids and how many tokens follow."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = {name: (list(tokenizer(text)["input_ids"]), prompts.ANSWER) for name, text in prompts.SHORT.items()}
    found["long"] = (prompts.stream_ids("long-8", prompts.LONG), prompts.LONG_ANSWER)
    return found


@torch.no_grad()
def answer(model: Any, ids: Sequence[int], count: int) -> tuple[list[int], torch.Tensor]:
    """Return greedy tokens and the float32 log probabilities of their steps, with the cache in use."""
    inputs, cache = torch.tensor([list(ids)]), None
    tokens: list[int] = []
    rows = []
    for _ in range(count):
        output = model(input_ids=inputs, cache=cache, use_cache=True)
        cache = output.past_key_values
        rows.append(output.logits[0, -1].float().log_softmax(-1))
        tokens.append(int(rows[-1].argmax()))
        inputs = torch.tensor([[tokens[-1]]])
    return tokens, torch.stack(rows)


@torch.no_grad()
def forced(model: Any, ids: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Return the float32 log probabilities of the steps of a given answer, with the cache in use."""
    output = model(input_ids=torch.tensor([list(ids)]), use_cache=True)
    rows = [output.logits[0, -1].float().log_softmax(-1)]
    for token in tokens[:-1]:
        output = model(input_ids=torch.tensor([[token]]), cache=output.past_key_values, use_cache=True)
        rows.append(output.logits[0, -1].float().log_softmax(-1))
    return torch.stack(rows)


@torch.no_grad()
def scored(model: Any, ids: Sequence[int]) -> list[float]:
    """Return the log probability of each token of a prompt; 0 for the first."""
    rows = model(input_ids=torch.tensor([list(ids)])).logits[0].float().log_softmax(-1)
    return [0.0] + [float(rows[at - 1, token]) for at, token in enumerate(ids) if at]


def golden(name: str, folder: Path, sha256: str) -> dict[str, Any]:
    """Return the golden data of one model."""
    reference = load(folder, torch.float32)
    others = {dtype: load(folder, kind) for dtype, kind in DTYPES.items()}
    drift = {dtype: {"top": 0.0, "scored": 0.0} for dtype in others}
    answers = {}
    for prompt, (ids, count) in all_prompts(folder).items():
        tokens, rows = answer(reference, ids, count)
        top = rows.topk(TOP, -1)
        for dtype, other in others.items():
            moved = (forced(other, ids, tokens).gather(1, top.indices) - top.values).abs().max()
            drift[dtype]["top"] = max(drift[dtype]["top"], float(moved))
        answers[prompt] = {
            "ids": ids,
            "tokens": tokens,
            "margin": [round(float(row[0] - row[1]), 4) for row in top.values],
            "top": [
                [[int(token), round(float(value), 4)] for token, value in zip(*step, strict=True)]
                for step in zip(top.indices, top.values, strict=True)
            ],
        }
    ids = prompts.stream_ids("scored", prompts.SCORED)
    score = scored(reference, ids)
    for dtype, other in others.items():
        drift[dtype]["scored"] = max(abs(a - b) for a, b in zip(scored(other, ids), score, strict=True))
    drift["float32"] = {"top": 0.0, "scored": 0.0}
    tolerance = {
        dtype: {kind: round(max(FLOOR, SAFETY * value), 4) for kind, value in kinds.items()}
        for dtype, kinds in drift.items()
    }
    return {
        "model": name,
        "model_sha256": sha256,
        "made_with": [f"torch=={torch.__version__.split('+')[0]}", f"transformers=={transformers.__version__}"],
        "reference_drift": {
            dtype: {kind: round(value, 4) for kind, value in kinds.items()} for dtype, kinds in drift.items()
        },
        "tolerance": tolerance,
        "answers": answers,
        "scored": {"ids": ids, "logprobs": [round(value, 4) for value in score]},
    }


def judge(model: Any, data: Mapping[str, Any], dtype: str, *, until_seen: bool = False) -> Comparison:
    """Compare a model's answers with golden data, as the smoke cases do with a server's."""
    tolerance = data["tolerance"][dtype]
    given = scored(model, data["scored"]["ids"])
    result = compare_prompt("scored", data["scored"]["logprobs"], given, tolerance["scored"])
    for prompt, wanted in data["answers"].items():
        if until_seen and result.faults:
            break
        tokens, rows = answer(model, wanted["ids"], len(wanted["tokens"]))
        top = rows.topk(TOP + 3, -1)
        steps = [
            {int(token): float(value) for token, value in zip(*step, strict=True)}
            for step in zip(top.indices, top.values, strict=True)
        ]
        result.add(compare_answer(prompt, wanted, tokens, steps, tolerance["top"]))
    return result


def prove(name: str, folder: Path, data: dict[str, Any]) -> bool:
    """Break the bfloat16 model in every known way; returns whether each was seen and the whole model passes."""
    dtype = "bfloat16"
    whole = judge(load(folder, DTYPES[dtype]), data, dtype)
    say(f"{name}: whole: {len(whole.faults)} faults, worst {whole.worst:.3f}, tolerance {data['tolerance'][dtype]}")
    fine = not whole.faults
    proof: dict[str, Any] = {"whole": {"seen": bool(whole.faults), "worst": round(whole.worst, 3)}}
    for label, fault in faults.FAULTS[name].items():
        with faults.broken(load(folder, DTYPES[dtype]), fault) as model:
            result = judge(model, data, dtype, until_seen=True)
        say(f"{name}: {label}: {result.faults[0] if result.faults else 'NOT SEEN'}")
        proof[label] = {"seen": bool(result.faults), "worst": round(result.worst, 3)}
        fine = fine and bool(result.faults)
    data["proof"] = proof
    return fine


def main(argv: Sequence[str] | None = None) -> int:
    """Write, check or prove; returns the exit status."""
    parser = argparse.ArgumentParser(prog="smoke_tests.models.golden", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files and write nothing")
    parser.add_argument("--prove", action="store_true", help="show that the golden data sees broken models")
    parser.add_argument("--model", choices=sorted(RECIPES), action="append", help="only this model")
    words = parser.parse_args(argv)
    torch.set_num_threads(1)
    fine = True
    for name in words.model or sorted(RECIPES):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / name
            sha256 = write_model(name, folder)
            data = golden(name, folder, sha256)
            proven = prove(name, folder, data)
        fine = fine and proven
        path = FOLDER / f"{name}.json"
        if words.check:
            fine = same(path, data) and fine
        elif proven and not words.prove:
            path.parent.mkdir(exist_ok=True)
            path.write_text(compact(data), encoding="utf-8")
            say(f"{name}: wrote {path.name}, drift {data['reference_drift']}, tolerance {data['tolerance']}")
    return 0 if fine else 1


def compact(data: Mapping[str, Any]) -> str:
    """Return JSON with one line a top-level key and one a prompt."""
    lines = []
    for key, value in data.items():
        if key in ("answers", "proof"):
            inner = ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n  {inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def same(path: Path, data: Mapping[str, Any]) -> bool:
    """Tell whether new golden data agree with a committed file: same model, same tokens, near log probabilities."""
    old = json.loads(path.read_text(encoding="utf-8"))
    if old["model_sha256"] != data["model_sha256"]:
        say(f"{path.name}: made for another model; run without --check")
        return False
    result = Comparison()
    for prompt, wanted in old["answers"].items():
        new = data["answers"][prompt]
        steps = [{int(token): value for token, value in step} for step in new["top"]]
        result.add(compare_answer(prompt, wanted, new["tokens"], steps, FLOOR))
    for line in result.faults:
        say(f"{path.name}: {line}")
    return not result.faults


if __name__ == "__main__":
    sys.exit(main())
