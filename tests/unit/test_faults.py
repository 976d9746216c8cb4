"""The table of seeded faults: complete, unmistakable, and the page says what the results say."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from seatrial.ports.elf import read_elf
from seatrial.ports.layers import read_layers
from seatrial.ports.rootfs import RootFs, Wants, read_rootfs
from seatrial.stages.inspect import CASES, WHEEL_CHECKS
from seatrial.stages.inspect.environment import python_environment
from seatrial.stages.smoke import expected_cases
from tests.faults import page
from tests.faults.cheap import (
    Reading,
    archived,
    copied,
    differences,
    laid_over,
    lay_over,
    layers_laid_over,
    read_laid_over,
)
from tests.faults.clean import CLEAN
from tests.faults.derive import Layer
from tests.faults.elfedit import other_machine, renamed_need, renamed_path
from tests.faults.model import COLUMN, Fault, Judged, Outcome, judge, score
from tests.faults.run import Ran, failed, kept
from tests.faults.table import FAULTS, NOT_SEEDED, ROWS
from tests.imagemaker import SITE, Disk, elf_bytes, good_disk, good_facts

ROOT = Path(__file__).parents[2]
WANTS = Wants(keep=lambda path, size: path.endswith(("RECORD", "METADATA", ".py")), digest=lambda path: True)
FAULT = Fault("one", 1, "library", "native-closure", ("libnuma", "missing"), "what", seed=lambda layer: None)


# -- the table


def test_every_row_has_a_fault_or_a_reason() -> None:
    seeded = {fault.row for fault in FAULTS} - {COLUMN}
    assert seeded.isdisjoint(NOT_SEEDED)
    assert seeded | set(NOT_SEEDED) == set(range(1, ROWS + 1))


def test_there_are_enough_and_no_two_are_the_same() -> None:
    from_reports = [fault for fault in FAULTS if fault.row != COLUMN]
    assert len(from_reports) >= 60
    assert len(CLEAN) >= 20
    names = [fault.name for fault in FAULTS] + [clean.name for clean in CLEAN]
    assert len(names) == len(set(names))
    assert len({fault.what + fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_says_what_it_breaks_and_who_has_to_say_so(fault: Fault) -> None:
    assert (fault.seed is None) is not (fault.judge is None)
    assert fault.words and all(word.strip() for word in fault.words)
    assert fault.what and not fault.what.endswith(".")
    known: dict[str, tuple[str, ...]] = {
        "image": CASES,
        "server": expected_cases(ROOT / "smoke_tests", "basic", "0.28.0", "cpu").cases,
        "wheel": tuple(check.name for check in WHEEL_CHECKS),
        "tree": (*(path.name for path in (ROOT / "patches").iterdir() if path.is_dir()), "left-out", "fix"),
        "record": ("lock",),
        "registry": ("integrity", "refused", "registry"),
    }
    assert fault.open or fault.check in known[fault.subject]


# -- what counts as caught


@pytest.mark.parametrize(
    ("by", "sentences", "caught"),
    [
        (("native-closure",), ("libnuma is missing",), True),
        (("native-closure",), ("libnuma is there",), False),
        (("records",), ("libnuma is missing",), False),
        (("records", "native-closure"), ("x", "libnuma is missing"), True),
        ((), (), False),
    ],
)
def test_only_the_right_check_in_the_right_words_counts(
    by: tuple[str, ...], sentences: tuple[str, ...], caught: bool
) -> None:
    assert judge(FAULT, Judged(by, sentences), 1.0).caught is caught


def outcome(name: str, *, caught: bool = True, by: tuple[str, ...] = (), error: str = "") -> Outcome:
    return Outcome(name, caught, by, "", 1.0, error=error)


def test_the_score_counts_errors_as_not_caught_and_as_alarms() -> None:
    tried = [outcome("one", caught=False, error="it could not be seeded")]
    numbers = score([FAULT], tried, [outcome("good"), outcome("bad", by=("size",)), outcome("broken", error="x")])
    assert (numbers.seeded, numbers.caught, numbers.clean, numbers.false_alarms) == (1, 0, 3, 2)


def test_a_run_fails_for_what_got_through_and_for_marks_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = Fault("two", 1, "library", "size", ("x",), "what", seed=lambda layer: None, open="nothing looks there yet")
    monkeypatch.setattr("tests.faults.run.FAULTS", (FAULT, marked))

    def ran(one: bool, two: bool, unlike: list[str] | None = None, by: tuple[str, ...] = ()) -> Ran:
        tried = [outcome("one", caught=one), outcome("two", caught=two)]
        good = [outcome("good", by=by)]
        return Ran(tried, good, unlike or [], score((FAULT, marked), tried, good), 1.0)

    assert failed(ran(True, False)) == []
    assert failed(ran(False, False)) == ["one was not caught"]
    assert failed(ran(True, True)) == ["two is marked as open and was caught: take the mark away"]
    assert failed(ran(True, False, ["x: differs"])) == ["x: differs"]
    assert failed(ran(True, False, by=("size",))) == ["good is good and was refused"]


# -- results and page


def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.RESULTS.read_text())
    return found


def test_the_page_is_made_from_the_results() -> None:
    text = page.PAGE.read_text()
    assert page.page(text, results()) == text
    with pytest.raises(ValueError, match="marks of the table"):
        page.page(text.replace(page.END.format(name="open"), ""), results())


def test_the_results_are_about_these_faults_and_say_when_and_on_what() -> None:
    found = results()
    untried = [fault for fault in FAULTS if fault.name not in found["faults"]]
    assert set(found["faults"]) <= {fault.name for fault in FAULTS}
    assert {fault.subject for fault in untried} <= {"server"}, "these need a machine to themselves; the page says so"
    assert {name for name, row in found["faults"].items() if not row["caught"]} == {f.name for f in FAULTS if f.open}
    assert set(found["clean"]) <= {clean.name for clean in CLEAN}
    assert found["score"]["false_alarms"] == 0
    assert all(digest.startswith("sha256:") for digest in found["images"].values())
    assert all(row["date"] for part in ("faults", "clean") for row in found[part].values())


def test_what_was_not_run_again_stands_as_it_was(tmp_path: Path) -> None:
    name, clean = FAULTS[0].name, CLEAN[0].name
    row = {"caught": True, "by": [], "error": ""}
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"faults": {name: row, "gone": row}, "clean": {clean: row}, "images": {"1": "a"}}))
    new = {"faults": {FAULTS[1].name: {**row, "caught": False}}, "clean": {}, "images": {"2": "b"}, "date": "d"}
    found = kept(new, path)
    assert found["score"] == {"seeded": 2, "caught": 1, "clean": 1, "false_alarms": 0, "open": 0}
    assert found["images"] == {"1": "a", "2": "b"}


# -- layers


def read(disk: Disk) -> RootFs:
    return read_rootfs([disk.tar()], WANTS)


def layer(root: RootFs, disk: Disk) -> Layer:
    config: dict[str, Any] = {"config": {"Labels": {"a": "b"}, "Env": ["A=1", "AB=2"]}}
    return Layer(root, python_environment(root, good_facts()), lambda p: disk.files[p][0], lambda n: b"", config)


def test_a_layer_over_the_good_image_reads_like_the_image_with_it() -> None:
    disk, root = good_disk(), read(good_disk())
    made = layer(root, disk)
    made.put("/lib/x86_64-linux-gnu/libnew.so", elf_bytes(soname="libnew.so"))
    made.mode(f"{SITE}/vllm/model.py", 0o600)
    made.remove(f"{SITE}/filelock")
    made.link("/opt/vllm/bin/vllm", "/root/vllm")
    made.folder("/opt", mode=0o700)
    disk.add("/usr/lib/x86_64-linux-gnu/libnew.so", elf_bytes(soname="libnew.so"))
    disk.files[f"{SITE}/vllm/model.py"] = (disk.files[f"{SITE}/vllm/model.py"][0], 0o600)
    del disk.files[f"{SITE}/filelock/__init__.py"], disk.files["/opt/vllm/bin/vllm"]
    disk.links["/opt/vllm/bin/vllm"] = "/root/vllm"
    disk.folders["/opt"] = 0o700
    cheap = read_laid_over([laid_over(Reading(root, ()), made.tar())], WANTS)
    assert differences(cheap, read(disk)) == []
    assert differences(cheap, root) != []
    assert list(cheap.entries) == sorted(cheap.entries, key=lambda path: path.split("/"))


def test_a_reading_that_misses_something_is_seen() -> None:
    root = read(good_disk())
    other = copied(root)
    del other.entries["/usr/bin/passwd"]
    other.kept[f"{SITE}/vllm/model.py"] = b"other"
    assert differences(root, other) == ["/usr/bin/passwd", f"{SITE}/vllm/model.py (bytes)"]


def test_a_hard_link_that_would_change_is_refused() -> None:
    disk = good_disk()
    disk.hard["/usr/bin/again"] = "/usr/bin/passwd"
    root = read(disk)
    made = layer(root, disk)
    made.remove("/usr/bin/passwd")
    with pytest.raises(ValueError, match="hard link"):
        lay_over(root, made.tar(), WANTS)


def test_the_layers_of_a_derived_image_are_the_good_ones_and_its_own() -> None:
    root = read(good_disk())
    made = layer(root, good_disk())
    made.put("/new", b"x")
    made.remove("/usr/bin/passwd")
    below = read_layers([archived(good_disk().tar())], lambda path, size: False)
    found = layers_laid_over([laid_over(Reading(root, below), made.tar())], lambda path, size: True)
    assert found[: len(below)] == below
    assert (found[-1].files, found[-1].removed, found[-1].kept) == ({"/new": 1}, {"/usr/bin/passwd"}, {"/new": b"x"})


def test_a_changed_file_takes_its_record_and_its_lock_along() -> None:
    disk, root = good_disk(), read(good_disk())
    made = layer(root, disk)
    made.installed("vllm/model.py", b"new\n")
    made.installed("filelock/__init__.py", None)
    cheap = lay_over(root, made.tar(), WANTS)
    record = cheap.text(f"{SITE}/vllm-0.28.0+cpu.st1.dist-info/RECORD") or ""
    assert "vllm/model.py,sha256=" in record
    assert record.count("vllm/model.py") == 1
    assert "filelock/__init__.py" not in (cheap.text(f"{SITE}/filelock-3.16.1.dist-info/RECORD") or "")
    assert set(made.relocked()) == {"vllm", "filelock"}
    made.expect("vllm/model.py")
    assert made.meant == {"vllm/model.py": hashlib.sha256(b"new\n").hexdigest()}


def test_settings_change_alone() -> None:
    made = layer(read(good_disk()), good_disk())
    made.env("A", None)
    made.env("C", "3")
    made.label("a", None)
    made.label("x", "y")
    assert made.settings == {"Labels": {"x": "y"}, "Env": ["AB=2", "C=3"]}
    with pytest.raises(LookupError, match="no /nowhere"):
        made.remove("/nowhere")
    with pytest.raises(LookupError, match="is not in"):
        made.edited("vllm/model.py", "no such words", "x")


# -- native files


def test_native_files_are_changed_in_place() -> None:
    data = elf_bytes(["libtorch_cpu.so", "libc.so.6"], runpath="$ORIGIN/lib")
    changed = other_machine(data)
    assert len(changed) == len(data)
    assert read_elf(io.BytesIO(changed), len(changed)).machine == "AARCH64"
    for edit in (renamed_need, renamed_path):
        with pytest.raises((LookupError, AttributeError)):
            edit(data, "libnone.so", "x")
