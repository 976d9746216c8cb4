"""The plan of a build over the committed tables and locks; nothing is started and nothing is written."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.flow import plan as plan_module
from seatrial.flow.plan import BuildRequest, make_plan, say_plan
from seatrial.flow.project import Project
from seatrial.model.errors import LockError, UnsupportedError, UsageError
from seatrial.ports.console import Console
from seatrial.stages.inspect.table import CASES

HERE = Path(__file__).resolve().parents[2]
CPU = BuildRequest("cpu", base="0.28.0")
DIGEST = "sha256:" + "a" * 64


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module.host, "machine", lambda: "x86_64")


@pytest.fixture
def copied(tmp_path: Path) -> Project:
    """Return the tables of the checkout in a folder where they can be broken."""
    for name in ("images", "patches", "smoke_tests", "build/bases"):
        shutil.copytree(HERE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "models"))
    return Project(tmp_path)


def test_the_plan_of_each_base_names_all_that_is_wanted() -> None:
    project = Project(HERE)
    row = project.platform_table().row("cpu")
    for base in row.bases:
        plan = make_plan(project, BuildRequest("cpu", base=base))
        assert plan.lock.version == base
        assert [(need.kind, need.profile) for need in plan.requirements] == [
            ("inspect", "inspect"),
            *(("smoke", profile) for profile in row.profiles),
        ]
        assert plan.requirements[0].cases == CASES
        assert all(need.promised for need in plan.requirements)
        assert plan.out == HERE / "out" / f"{base}-cpu"
        assert plan.line.moving_tag == f"{base}-cpu"
    assert make_plan(project, BuildRequest("cpu")).lock.version == row.default_base


def test_a_fix_that_is_left_out_is_said() -> None:
    plan = make_plan(Project(HERE), replace(CPU, without=("gdn-state-dtype",)))
    out = io.StringIO()
    say_plan(plan, Console(out=out))
    assert "gdn-state-dtype" not in plan.stack
    assert "left out on request: gdn-state-dtype (so there will be no name)" in out.getvalue()
    assert "gdn-state-dtype" in make_plan(Project(HERE), CPU).stack


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"platform": "gpu"}, "there is no platform 'gpu'"),
        ({"base": "9.9.9"}, "there is no base '9.9.9'"),
        ({"without": ("nothing",)}, "there is no fix 'nothing'"),
        ({"revision": 0}, "no revision 0"),
        ({"revision": -3}, "no revision -3"),
        ({"push": "vllm"}, "names no registry"),
        ({"push": "127.0.0.1:5000/team/vllm:tag"}, "holds a tag"),
        ({"base_image_ref": "debian"}, "by digest"),
        ({"base_image": "pull"}, "told what to pull"),
    ],
)
def test_words_that_cannot_work_are_usage_errors(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan(Project(HERE), replace(CPU, **changes))  # type: ignore[arg-type]


def test_words_that_can_work_are_taken() -> None:
    more = {"revision": 7, "push": "127.0.0.1:5000/team/vllm", "base_image": "pull"}
    request = replace(CPU, base_image_ref=f"debian@{DIGEST}", **more)  # type: ignore[arg-type]
    assert make_plan(Project(HERE), request).request is request


def test_what_a_platform_lacks_is_said_and_another_machine_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in Project(HERE).platform_table().platforms:
        if row.missing:
            with pytest.raises(UnsupportedError) as caught:
                make_plan(Project(HERE), BuildRequest(row.name))
            assert caught.value.why == row.missing
    monkeypatch.setattr(plan_module.host, "machine", lambda: "riscv64")
    with pytest.raises(UnsupportedError, match="this machine is riscv64"):
        make_plan(Project(HERE), CPU)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("images/locks/0.28.0-cpu.txt", "0.28.0-cpu.txt does not exist"),
        ("images/locks/cpu.toml", "images/locks/cpu.toml does not exist"),
        ("images/cpu/Dockerfile", "images/cpu/Dockerfile does not exist"),
        ("patches/series.toml", "series.toml"),
        ("smoke_tests/profiles.toml", "profiles.toml does not exist"),
    ],
)
def test_a_file_that_is_gone_is_said(copied: Project, name: str, said: str) -> None:
    make_plan(copied, CPU)
    (copied.root / name).unlink()
    with pytest.raises(LockError, match=said):
        make_plan(copied, CPU)


def test_a_torn_lock_and_a_base_without_a_moment_are_said(copied: Project) -> None:
    lock = copied.images / "locks" / "0.28.0-cpu.torch-index.txt"
    good = lock.read_text()

    lock.write_text(good.replace("    --hash=sha256:", "    --hash=md5:", 1))
    with pytest.raises(LockError, match=r"torch-index\.txt"):
        make_plan(copied, CPU)
    lock.write_text(good)
    rules = copied.images / "locks" / "cpu.toml"
    rules.write_text(rules.read_text().replace('"0.28.0" = ', '"0.29.0" = '))
    with pytest.raises(UsageError, match=r"no moment is set .* 0\.28\.0"):
        make_plan(copied, CPU)
