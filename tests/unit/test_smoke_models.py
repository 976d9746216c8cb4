"""The tiny models come out the same everywhere, and their golden answers see what is broken."""

from __future__ import annotations

import json
import stat
import sys
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from smoke_tests.compare import Comparison, compare_answer, compare_prompt  # noqa: E402
from smoke_tests.models import recipes, tokenizer, weights  # noqa: E402
from smoke_tests.trial import GOLDEN, read_golden  # noqa: E402

MODELS = list(recipes.RECIPES)


@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_makes_the_model_that_its_golden_answers_are_for(model: str, tmp_path: Path) -> None:
    golden = read_golden(model)
    assert recipes.write_model(model, tmp_path / model) == golden["model_sha256"]
    assert all(path.stat().st_mode & stat.S_IROTH for path in (tmp_path / model).iterdir())
    assert (tmp_path / model).stat().st_mode & stat.S_IXOTH


def test_one_changed_byte_is_another_model(tmp_path: Path) -> None:
    before = recipes.write_model("qwen3", tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert recipes.folder_sha256(tmp_path / "m") != before


def test_safetensors_header_covers_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    weights.write_safetensors(
        path, {"b": weights.normal("b", (3, 4), std=1.0), "a": weights.normal("a", (5,), std=1.0)}
    )
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    assert size % 8 == 0
    assert header["a"] == {"dtype": "BF16", "shape": [5], "data_offsets": [0, 10]}
    assert header["b"]["data_offsets"] == [10, len(raw) - 8 - size]


@pytest.mark.parametrize(("value", "kept"), [(1.0, 1.0), (-2.5, -2.5), (1.00390625, 1.0), (1.01171875, 1.015625)])
def test_bfloat16_rounds_to_nearest_even(value: float, kept: float) -> None:
    assert weights.bf16_value(weights.bf16(value)) == kept


def test_weights_are_normal_and_named_by_their_seed() -> None:
    tensor = weights.normal("seed", (100, 100), std=2.0, mean=1.0)
    values = [weights.bf16_value(tensor.data[at : at + 2]) for at in range(0, len(tensor.data), 2)]
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    assert abs(mean - 1.0) < 0.1
    assert abs(spread - 2.0) < 0.1
    assert weights.normal("seed", (100, 100), std=2.0, mean=1.0) == tensor
    assert weights.normal("other", (100, 100), std=2.0, mean=1.0) != tensor
    with pytest.raises(ValueError, match="do not fill"):
        weights.Tensor((3,), b"1234")


def test_every_byte_is_a_token_and_every_merge_leads_to_one() -> None:
    vocabulary, merges = tokenizer.pieces()
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert len(set(tokenizer.byte_letters())) == 256
    assert all(left in vocabulary and right in vocabulary and left + right in vocabulary for left, right in merges)
    assert max(tokenizer.special_ids().values()) < tokenizer.VOCAB_SIZE
    assert not tokenizer.speakable_ids() & set(tokenizer.special_ids().values())


@pytest.mark.parametrize("model", MODELS)
def test_golden_data_were_proven_to_see_small_faults(model: str) -> None:
    golden = json.loads((GOLDEN / f"{model}.json").read_text())
    proof = golden["proof"]
    wholes = {name: proof.pop(name) for name in list(proof) if name.startswith("whole, ")}
    assert not any(entry["seen"] for entry in wholes.values())
    for whole in wholes:
        dtype = whole.removeprefix("whole, ")
        assert sum(name.endswith(f", {dtype}") for name in proof) >= (4 if dtype.endswith("-fp8") else 6)
    assert all(entry["seen"] and entry["by"] for entry in proof.values())
    for dtype, drift in golden["reference_drift"].items():
        for kind, value in drift.items():
            assert golden["tolerance"][dtype][kind] >= value


@pytest.mark.parametrize(
    ("fault", "by"),
    [
        ("the state is lost between steps", {"sea", "long", "prompt-64", "prompt-65", "prompt-300", "watch"}),
        ("a prompt starts from the state of the one before", {"one", "sea", "prompt-65"}),
        ("the state is lost at chunk edges", {"prompt-513"}),
        (
            "z is read in the other 16-bit type",
            {"one", "sea", "long", "prompt-64", "prompt-513", "prompt-577", "watch"},
        ),
    ],
)
def test_a_fault_of_a_branch_is_seen_by_the_prompts_of_its_cases(fault: str, by: set[str]) -> None:
    assert set(read_golden("qwen3-next")["proof"][f"{fault}, bfloat16"]["by"]) >= by


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_no_two_of_the_crew_can_change_places_unseen(dtype: str) -> None:
    golden = read_golden("qwen3-next")
    crew = [name for name in golden["answers"] if name.startswith("crew-")]
    assert len(crew) == 65
    limit = golden["tolerance"][dtype]["top"]

    def seen(name: str, other: str) -> bool:
        tokens, top = answer_of(golden, other)
        return bool(compare_answer("", golden["answers"][name], tokens, top, limit).faults)

    assert not any(seen(name, name) for name in crew)
    assert all(seen(name, other) or seen(other, name) for name, other in combinations(crew, 2))


def test_a_mean_is_judged_where_a_data_type_has_a_limit_for_it() -> None:
    found = Comparison()
    for off in (0.1, 0.9, 0.8):
        found.note(off)
    found.settle({"top": 2.0})
    found.settle({"top": 2.0, "mean": 0.61})
    assert not found.faults
    found.settle({"top": 2.0, "mean": 0.59})
    assert found.faults == ["log probabilities are off by 0.600 in the mean of 3, tolerance 0.590"]


def answer_of(golden: dict, name: str) -> tuple[list[int], list[dict[int, float]]]:
    wanted = golden["answers"][name]
    return list(wanted["tokens"]), [{int(token): value for token, value in step} for step in wanted["top"]]


def test_the_golden_answer_itself_agrees() -> None:
    golden = read_golden("qwen3")
    tokens, top = answer_of(golden, "sea")
    found = compare_answer("sea", golden["answers"]["sea"], tokens, top, 0.01)
    assert (found.faults, found.steps, found.worst) == ([], len(tokens), 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.5])
def test_a_log_probability_that_cannot_be_is_seen(bad: float) -> None:
    golden = read_golden("qwen3")
    tokens, top = answer_of(golden, "sea")
    top[3][tokens[3]] = bad
    assert "step 3" in compare_answer("sea", golden["answers"]["sea"], tokens, top, 0.3).faults[0]


def test_a_shifted_log_probability_is_seen_and_a_small_shift_is_not() -> None:
    golden = read_golden("qwen3")
    tokens, top = answer_of(golden, "sea")
    top[2][tokens[2]] -= 0.2
    wanted = golden["answers"]["sea"]
    assert not compare_answer("sea", wanted, tokens, top, 0.25).faults
    assert "tolerance 0.150" in compare_answer("sea", wanted, tokens, top, 0.15).faults[0]


def test_another_token_is_allowed_only_within_the_margin() -> None:
    golden = read_golden("qwen3")
    wanted = golden["answers"]["sea"]
    tokens, top = answer_of(golden, "sea")
    place = max(range(len(tokens)), key=lambda step: wanted["margin"][step])
    tokens[place] = int(wanted["top"][place][1][0])
    assert "instead of" in compare_answer("sea", wanted, tokens, top, 0.3).faults[0]
    allowed = compare_answer("sea", wanted, tokens, top, wanted["margin"][place] + 0.1)
    assert not allowed.faults
    assert allowed.steps == place + 1


def test_short_answers_and_missing_first_choices_are_seen() -> None:
    golden = read_golden("qwen3")
    wanted = golden["answers"]["sea"]
    tokens, top = answer_of(golden, "sea")
    assert "asked for" in compare_answer("sea", wanted, tokens[:-1], top[:-1], 0.3).faults[0]
    del top[0][tokens[0]]
    assert "golden first choice" in compare_answer("sea", wanted, tokens, top, 0.3).faults[0]


def test_prompt_log_probabilities() -> None:
    assert compare_prompt("p", [0.0, -1.0, -2.0], [None, -1.1, -2.0], 0.2).steps == 2
    assert "token 2" in compare_prompt("p", [0.0, -1.0, -2.0], [None, -1.1, -2.5], 0.2).faults[0]
    assert "None" in compare_prompt("p", [0.0, -1.0], [None, None], 0.2).faults[0]
    assert "for 2 tokens" in compare_prompt("p", [0.0, -1.0], [None], 0.2).faults[0]
