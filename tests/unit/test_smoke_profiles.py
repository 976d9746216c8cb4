"""What a profile promises is the same for the suite and for the gate."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from seatrial.model.errors import LockError, UsageError
from seatrial.stages.smoke import expected_cases, read_profiles, time_limit

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the suite stands alone, beside the package

from smoke_tests import profiles  # noqa: E402

SUITE = ROOT / "smoke_tests"
DATA = profiles.read()


@pytest.mark.parametrize("profile", list(DATA["profiles"]))
@pytest.mark.parametrize("platform", list(DATA["platforms"]))
@pytest.mark.parametrize("base", ["0.15.1", "0.28.0"])
def test_both_readers_agree(profile: str, platform: str, base: str) -> None:
    found = expected_cases(SUITE, profile, base, platform)
    made = profiles.plan(DATA, profile, platform, base)
    assert found.cases == tuple(f"{group.name}/{case}" for group in made.groups for case in group.cases)
    assert found.not_supported == {
        f"{group.name}/{case}": reason for group in made.groups for case, reason in group.not_supported.items()
    }


def test_both_bases_serve_both_models() -> None:
    for base in ("0.15.1", "0.28.0"):
        assert not expected_cases(SUITE, "basic", base, "cpu").not_supported
    assert not expected_cases(SUITE, "gdn", "0.15.1", "cuda-sm90").not_supported
    declared = expected_cases(SUITE, "gdn", "0.15.1", "cpu").not_supported
    assert {case.partition("/")[0] for case in declared} == {"gdn-fp8"}


def test_every_kind_of_request_is_the_first_of_some_server() -> None:
    cases = expected_cases(SUITE, "first-request", "0.28.0", "cpu").cases
    for kind in ("completion", "chat", "streaming", "logprobs", "structured-json", "tools"):
        for model in ("qwen3", "qwen3-next"):
            at = cases.index(f"{model}-{kind}-first/{kind}")
            assert cases[at - 1] == f"{model}-{kind}-first/ready"


def test_every_case_has_one_test() -> None:
    text = "".join(path.read_text() for path in SUITE.glob("test_*.py"))
    named = {case for entry in DATA["profiles"]["basic"]["groups"] for case in entry["cases"]}
    assert all(text.count(f'"{case}"') >= 1 for case in named)


GROUPS = ("gdn-bfloat16", "gdn-float16", "gdn-fp8")


@pytest.mark.parametrize("platform", list(DATA["platforms"]))
@pytest.mark.parametrize("base", ["0.15.1", "0.28.0"])
def test_gdn_asks_the_same_of_each_data_type(platform: str, base: str) -> None:
    groups = {group.name: group for group in profiles.plan(DATA, "gdn", platform, base).groups}
    asked = [set(groups[name].cases) - profiles.SILENT - {"first-request", "serves-or-refuses"} for name in GROUPS]
    assert asked[0] == asked[1] == asked[2]
    assert {"decode-1", "decode-64", "decode-65", "prefill-1", "chunks-1", "mixed", "reused-slots"} <= asked[0]
    assert [groups[name].tolerance for name in GROUPS] == ["bfloat16", "float16", "bfloat16-fp8"]
    assert "--quantization" not in groups["gdn-bfloat16"].flags
    assert groups["gdn-fp8"].flags[groups["gdn-fp8"].flags.index("--quantization") + 1] == "fp8"
    assert groups["gdn-first-request"].cases == ("ready", "first-request", "log", "end")
    fp8 = groups["gdn-fp8"].not_supported
    assert set(fp8) == (set(groups["gdn-fp8"].cases) if platform in ("cpu", "cuda-sm80") else set())


def test_a_data_type_that_a_base_refuses_is_declared_by_group() -> None:
    refused = expected_cases(SUITE, "gdn", "0.28.0", "cpu").not_supported
    assert "gdn-float16/serves-or-refuses" not in refused
    assert "gdn-float16/decode-64" in refused
    assert "gdn-bfloat16/decode-64" not in refused


def test_extended_compares_every_server_with_a_plain_one() -> None:
    made = profiles.plan(DATA, "extended", "cpu", "0.28.0")
    groups = {group.name: group for group in made.groups}
    assert "answers" in made.groups[0].cases
    for group in made.groups:
        if "same-answers" in group.cases:
            assert (group.model, group.dtype) == (made.groups[0].model, made.groups[0].dtype)
    bind = "VLLM_CPU_OMP_THREADS_BIND"
    assert {name for name, group in groups.items() if bind in group.environment} == {
        "tensor-parallel",
        "pipeline-parallel",
    }
    assert all(group.environment["VLLM_CPU_KVCACHE_SPACE"] for group in made.groups)


@pytest.mark.parametrize("cases", [["ready"], ["ready", "models", "log", "end"], []])
def test_a_group_that_asks_nothing_is_refused(cases: list[str]) -> None:
    group = {"name": "idle", "model": "qwen3", "dtype": "bfloat16", "cases": cases}
    data = {**DATA, "profiles": {"idle": {"groups": [group]}}}
    with pytest.raises(profiles.PlanError, match="idle asks nothing of its server"):
        profiles.plan(data, "idle", "cpu", "0.28.0")


def test_unknown_words_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="no smoke profile 'deep'"):
        expected_cases(SUITE, "deep", "0.28.0", "cpu")
    with pytest.raises(UsageError, match="no platform 'tpu'"):
        expected_cases(SUITE, "basic", "0.28.0", "tpu")
    with pytest.raises(profiles.PlanError, match="no platform"):
        profiles.plan(DATA, "basic", "tpu", "0.28.0")


def test_a_malformed_table_is_a_lock_error(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="does not exist"):
        read_profiles(tmp_path)
    (tmp_path / "profiles.toml").write_text("[limits]\nready = 'long'\n")
    with pytest.raises(LockError, match=r"profiles\.toml"):
        read_profiles(tmp_path)


def test_the_time_limit_leaves_room_for_every_wait() -> None:
    table = read_profiles(SUITE)
    assert time_limit(table, "basic") > 3 * table.limits.ready
    assert time_limit(table, "first-request") > time_limit(table, "basic")
