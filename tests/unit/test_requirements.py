from __future__ import annotations

import re
from pathlib import Path

import pytest

from seatrial.model.errors import LockError, UsageError
from seatrial.model.requirements import LockedWheel, LockRules, belongs_to_torch, lock_text, parse_lock
from seatrial.ports.pip_config import PipConfig
from seatrial.ports.uv import best_wheel, index_flags
from seatrial.stages import lock_requirements as stage
from seatrial.stages.lock_requirements import load_rules, requirements_of
from seatrial.stages.wheelhouse import read_requirement_lock

LOCKS = Path(__file__).parents[2] / "images" / "locks"
WHEEL = LockedWheel("a-b", "1.0+cpu", "a_b-1.0+cpu-py3-none-any.whl", 12, "0" * 64)
RULES = LockRules(python="3.11", resolver_platform="x86_64-manylinux_2_36", until={"1.0.0": "2026-01-01T00:00:00Z"})
METADATA = b"""Metadata-Version: 2.4
Name: vllm
Version: 1.0.0
Requires-Dist: numpy
Requires-Dist: six>=1.16; python_version > "3.11"
Requires-Dist: xgrammar==0.1; platform_machine == "x86_64"
Requires-Dist: torch==2.10.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision; platform_machine != "s390x"
Requires-Dist: ray; extra == "ray"
"""


def test_a_lock_reads_back_as_it_was_written() -> None:
    other = LockedWheel("a", "2", "a-2-py3-none-any.whl", 1, "1" * 64)
    text = lock_text((WHEEL, other), ("why", ""))
    assert parse_lock(text, "x") == (other, WHEEL)
    assert text.startswith("# why\n#\na==2 \\\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--hash=sha256:", "--hash=md5:"),
        ("a-b==1.0+cpu", "a-b>=1.0"),
        ("12 bytes", "bytes"),
        ("0" * 64, "0" * 63),
        ("    # a_b", "    # a file of a_b"),
    ],
)
def test_a_lock_that_was_changed_in_form_is_refused(old: str, new: str) -> None:
    text = lock_text((WHEEL,), ())
    assert old in text
    with pytest.raises(LockError, match="not a pin"):
        parse_lock(text.replace(old, new), "x")


def test_a_lock_names_each_distribution_once_and_is_never_empty() -> None:
    with pytest.raises(LockError, match="stands twice"):
        parse_lock(lock_text((WHEEL, WHEEL), ()), "x")
    with pytest.raises(LockError, match="pins nothing"):
        parse_lock("# nothing\n", "x")


def test_requirements_follow_the_markers_of_the_image_and_not_of_this_machine() -> None:
    assert requirements_of(METADATA, RULES, "1.0.0") == ["numpy", "torchvision", "xgrammar==0.1"]


def test_what_is_left_out_goes_and_bounds_come_for_their_base_alone() -> None:
    rules = LockRules.model_validate_json(
        '{"python": "3.11", "resolver_platform": "p", "until": {}, "left_out": [{"name": "torchvision", "why": "w"}],'
        ' "bounds": [{"requirement": "numpy<2", "bases": ["1.0.0"], "why": "w"}]}'
    )
    assert requirements_of(METADATA, rules, "1.0.0") == ["numpy", "numpy<2", "xgrammar==0.1"]
    assert requirements_of(METADATA, rules, "2.0.0") == ["numpy", "xgrammar==0.1"]
    with pytest.raises(LockError, match="requires nothing"):
        requirements_of(b"Name: vllm\n\n", rules, "1.0.0")


def test_a_base_without_a_moment_cannot_be_locked() -> None:
    assert RULES.moment("1.0.0") == "2026-01-01T00:00:00Z"
    with pytest.raises(UsageError, match=r"base 9\.9\.9"):
        RULES.moment("9.9.9")


def test_the_wheel_that_an_installer_would_take_is_locked() -> None:
    def wheel(file: str, sha256: str) -> dict[str, object]:
        return {"url": f"https://example.invalid/{file}", "size": 3, "hashes": {"sha256": sha256}}

    package = {
        "name": "A_b",
        "version": "1",
        "wheels": [
            wheel("a_b-1-py3-none-any.whl", "1" * 64),
            wheel("a_b-1-cp311-cp311-manylinux_2_28_x86_64.whl", "2" * 64),
            wheel("a_b-1-cp311-cp311-manylinux_2_39_x86_64.whl", "3" * 64),
            wheel("a_b-1-cp312-cp312-manylinux_2_28_x86_64.whl", "4" * 64),
        ],
    }
    found = best_wheel(package, RULES)
    assert (found.wheel.name, found.wheel.sha256) == ("a-b", "2" * 64)
    with pytest.raises(LockError, match="no wheel"):
        best_wheel({**package, "wheels": package["wheels"][3:]}, RULES)  # type: ignore[index]


def test_uv_is_told_what_pip_is_configured_with(tmp_path: Path) -> None:
    config = PipConfig(
        index_urls=("https://one.invalid/simple", "https://two.invalid/simple"),
        find_links=("/somewhere",),
        trusted_hosts=("two.invalid",),
        cert=tmp_path / "ca.pem",
        proxy="http://proxy.invalid:3128",
    )
    flags, variables = index_flags(config)
    assert flags[flags.index("--default-index") + 1] == "https://one.invalid/simple"
    assert flags[flags.index("--index") + 1] == "https://two.invalid/simple"
    assert flags[flags.index("--find-links") + 1] == "/somewhere"
    assert variables["SSL_CERT_FILE"] == str(tmp_path / "ca.pem")
    assert variables["HTTPS_PROXY"] == "http://proxy.invalid:3128"
    assert "--no-index" in index_flags(PipConfig(index_urls=(), find_links=("/x",)))[0]


def test_a_missing_lock_says_how_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="nox -s lock-requirements"):
        read_requirement_lock(tmp_path / "1.0.0-cpu.txt")
    with pytest.raises(LockError, match=r"cpu\.toml"):
        load_rules(tmp_path / "cpu.toml")


def test_the_committed_locks_name_no_place_and_fit_together() -> None:
    rules = load_rules(LOCKS / "cpu.toml")
    dropped = {entry.name for entry in rules.left_out}
    for path in LOCKS.glob("*.txt"):
        assert not re.search(r"://|--index|--find-links|@ ", path.read_text(encoding="utf-8")), path.name
        names = {wheel.name for wheel in read_requirement_lock(path)}
        assert not names & dropped, path.name
        if "torch-" in path.name:
            assert "torch" in names
            assert all(belongs_to_torch(name) for name in names)
        else:
            assert not any(belongs_to_torch(name) for name in names)
    for base in rules.until:
        assert (LOCKS / f"{base}-cpu.txt").is_file()


def test_writing_locks_splits_torch_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seatrial.ports.console import Console
    from seatrial.ports.uv import Resolved

    asked: list[list[str]] = []

    def resolve(requirements: list[str], *_: object, **__: object) -> tuple[Resolved, ...]:
        asked.append(list(requirements))
        names = ("numpy", "torch", "nvidia-nccl-cu12", "triton")
        return tuple(Resolved(LockedWheel(n, "1", f"{n}-1-py3-none-any.whl", 1, "a" * 64), "") for n in names)

    monkeypatch.setattr(stage, "resolve", resolve)
    monkeypatch.setattr(stage, "find_cpu_torch", lambda *_: None)
    (tmp_path / "cpu.toml").write_text(
        'python = "3.11"\nresolver_platform = "p"\n[until]\n"1.0.0" = "2026-01-01T00:00:00Z"\n'
        '[[left_out]]\nname = "triton"\nwhy = "w"\n',
        encoding="utf-8",
    )
    console = Console()
    written = stage.lock_requirements(
        METADATA,
        "1.0.0",
        "cpu",
        "2.10.0",
        locks=tmp_path,
        config=PipConfig(index_urls=("https://x.invalid",)),
        console=console,
    )
    assert "torch==2.10.0,!=2.10.0+cpu" in asked[0]
    assert [wheel.name for wheel in read_requirement_lock(written.rest)] == ["numpy"]
    assert written.torch_index is not None
    assert [wheel.name for wheel in read_requirement_lock(written.torch_index)] == ["nvidia-nccl-cu12", "torch"]
    assert written.torch_cpu is None
    assert "2.10.0+cpu" in console.fallbacks[0]
