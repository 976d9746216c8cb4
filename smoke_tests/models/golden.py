"""Makes the golden answers with Hugging Face transformers, and proves that they see a broken model.

    python -m smoke_tests.models.golden            write smoke_tests/models/golden/<model>.json
    python -m smoke_tests.models.golden --check    compare with the committed files, write nothing
    python -m smoke_tests.models.golden --prove    break the model in many small ways; each must be seen

Needs torch (CPU) and transformers of the versions in REQUIREMENTS; nothing is fetched.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from smoke_tests.compare import Comparison, compare_answer, compare_prompt
from smoke_tests.models import faults, prompts
from smoke_tests.models.fp8 import INPUTS, online_fp8
from smoke_tests.models.prompts import Prompt
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
ONLINE_FP8 = "bfloat16-fp8"
"""Key of bfloat16 with linear layers quantised while the model is loaded."""

EXTRA_TOP = 3
"""Log probabilities a step that a judged model gives beyond those that are compared."""


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def load(folder: Path, dtype: torch.dtype) -> Any:
    """Load a model in one data type, with plain attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def all_prompts(name: str, folder: Path) -> dict[str, Prompt]:
    """Return the prompts of a model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = {key: Prompt(list(tokenizer(text)["input_ids"]), prompts.ANSWER) for key, text in prompts.SHORT.items()}
    found["long"] = Prompt(prompts.stream_ids("long-8", prompts.LONG), prompts.LONG_ANSWER)
    return found | (prompts.gdn_prompts() if name == "qwen3-next" else prompts.needle_prompts())


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


def forced(model: Any, ids: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
    """Return the float32 log probabilities of the steps of a given answer, with the cache in use."""
    output = model(input_ids=torch.tensor([list(ids)]), use_cache=True)
    rows = [output.logits[0, -1].float().log_softmax(-1)]
    for token in tokens[:-1]:
        output = model(input_ids=torch.tensor([[token]]), cache=output.past_key_values, use_cache=True)
        rows.append(output.logits[0, -1].float().log_softmax(-1))
    return torch.stack(rows)


def scored(model: Any, ids: Sequence[int]) -> list[float]:
    """Return the log probability of each token of a prompt; 0 for the first."""
    rows = model(input_ids=torch.tensor([list(ids)])).logits[0].float().log_softmax(-1)
    return [0.0] + [float(rows[at - 1, token]) for at, token in enumerate(ids) if at]


@contextlib.contextmanager
def running(models: Mapping[str, Any], way: str) -> Iterator[Any]:
    """Give the model of a data type, with linear layers in FP8 where the way says so: `bfloat16-fp8/token`."""
    dtype, _, inputs = way.partition("/")
    if not inputs:
        yield models[dtype]
        return
    with online_fp8(models[dtype.partition("-")[0]], inputs) as model:
        yield model


def ways(name: str) -> list[str]:
    """Return every way in which a model is run besides float32."""
    return [*DTYPES, *(f"{ONLINE_FP8}/{inputs}" for inputs in INPUTS if name == "qwen3-next")]


def golden(name: str, folder: Path, sha256: str) -> dict[str, Any]:
    """Return the golden data of one model."""
    reference = load(folder, torch.float32)
    others = {dtype: load(folder, kind) for dtype, kind in DTYPES.items()}
    answers = {}
    for key, prompt in all_prompts(name, folder).items():
        tokens, rows = answer(reference, prompt.ids, prompt.answer)
        top = rows.topk(TOP, -1)
        answers[key] = {
            "ids": prompt.ids,
            "tokens": tokens,
            "margin": [round(float(row[0] - row[1]), 4) for row in top.values],
            "top": [
                [[int(token), round(float(value), 4)] for token, value in zip(*step, strict=True)]
                for step in zip(top.indices, top.values, strict=True)
            ],
        }
    ids = prompts.stream_ids("scored", prompts.SCORED)
    score = scored(reference, ids)
    drift = {"float32": {"top": 0.0, "scored": 0.0}}
    for way in ways(name):
        with running(others, way) as model:
            found = drift_of(model, answers, ids, score, mean=way.startswith(ONLINE_FP8))
        old = drift.setdefault(way.partition("/")[0], dict.fromkeys(found, 0.0))
        old.update({kind: max(old[kind], value) for kind, value in found.items()})
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


def drift_of(
    model: Any, answers: Mapping[str, Any], ids: Sequence[int], score: Sequence[float], *, mean: bool
) -> dict[str, float]:
    """Return how far a model's log probabilities are from the reference's: the largest, and the mean of one prompt."""
    off = [abs(a - b) for a, b in zip(scored(model, ids), score, strict=True)]
    found = {"top": 0.0, "scored": max(off)}
    means = [sum(off) / len(off)]
    for wanted in answers.values():
        given = forced(model, wanted["ids"], wanted["tokens"])
        places = torch.tensor([[token for token, _ in step] for step in wanted["top"]])
        values = torch.tensor([[value for _, value in step] for step in wanted["top"]])
        moved = (given.gather(1, places) - values).abs()
        found["top"] = max(found["top"], float(moved.max()))
        means.append(float(moved.mean()))
    return found | ({"mean": max(means)} if mean else {})


def judge(model: Any, data: Mapping[str, Any], dtype: str, names: Sequence[str]) -> dict[str, Comparison]:
    """Compare a model's answers with golden data, as the smoke cases do with a server's; returns each prompt's part."""
    tolerance = data["tolerance"][dtype]
    given = scored(model, data["scored"]["ids"])
    found = {"scored": compare_prompt("scored", data["scored"]["logprobs"], given, tolerance["scored"])}
    for prompt in names:
        wanted = data["answers"][prompt]
        tokens, rows = answer(model, wanted["ids"], len(wanted["tokens"]))
        top = rows.topk(TOP + EXTRA_TOP, -1)
        steps = [
            {int(token): float(value) for token, value in zip(*step, strict=True)}
            for step in zip(top.indices, top.values, strict=True)
        ]
        found[prompt] = compare_answer(prompt, wanted, tokens, steps, tolerance["top"])
    for comparison in found.values():
        comparison.settle(tolerance)
    return found


def prove(name: str, folder: Path, data: dict[str, Any]) -> bool:
    """Break the model in every known way, in bfloat16 and in FP8; returns whether each was seen, and nothing else."""
    few = [key for key in data["answers"] if not key.startswith("crew-")]
    fine = True
    data["proof"] = {}
    for way in ("bfloat16", *(way for way in ways(name) if way == f"{ONLINE_FP8}/token")):
        dtype = way.partition("/")[0]
        whole: list[tuple[str, faults.Fault]] = [("whole", lambda _model, _stack: None)]
        for label, fault in [*whole, *faults.FAULTS[name].items()]:
            if dtype != "bfloat16" and label not in ("whole", *faults.GROSS):
                continue
            models = {key: load(folder, kind) for key, kind in DTYPES.items() if key == "bfloat16"}
            with running(models, way) as model, faults.broken(model, fault):
                found = judge(model, data, dtype, list(data["answers"]) if label == "whole" else few)
            by = [prompt for prompt, comparison in found.items() if comparison.faults]
            worst = max(comparison.worst for comparison in found.values())
            first = next((comparison.faults[0] for comparison in found.values() if comparison.faults), "nothing seen")
            say(f"{name} in {dtype}: {label}: {first} (by {', '.join(by) or 'none'}; worst {worst:.3f})")
            data["proof"][f"{label}, {dtype}"] = {"seen": bool(by), "worst": round(worst, 3), "by": by}
            fine = fine and bool(by) == (label != "whole")
    return fine


def main(argv: Sequence[str] | None = None) -> int:
    """Write, check or prove; returns the exit status."""
    parser = argparse.ArgumentParser(prog="smoke_tests.models.golden", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files and write nothing")
    parser.add_argument("--prove", action="store_true", help="show that the golden data sees broken models")
    parser.add_argument("--model", choices=sorted(RECIPES), action="append", help="only this model")
    words = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
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
