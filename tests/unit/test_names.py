"""Names: made one way, read back strictly, numbers never move, the moving name never goes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from seatrial.model.errors import IntegrityError, RefusedError, UsageError
from seatrial.model.names import (
    INPUTS_LABEL,
    REVISION_LABEL,
    Line,
    choose_revision,
    existing_revisions,
    labelled_revision,
    plan_names,
)

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A loaded machine is no failure."""

CPU = Line(base="0.28.0", platform="cpu")
A, B = "a" * 64, "b" * 64
D1, D2, D3 = (f"sha256:{letter * 64}" for letter in "123")


class MemoryStore:
    """A repository held in two dictionaries."""

    where = "vllm"

    def __init__(self, tags: Mapping[str, str], images: Mapping[str, Mapping[str, str]]) -> None:
        self._tags = dict(tags)
        self._images = dict(images)

    def tags(self) -> Sequence[str]:
        return list(self._tags)

    def digest(self, tag: str) -> str | None:
        return self._tags.get(tag)

    def labels(self, digest: str) -> Mapping[str, str]:
        return self._images[digest]

    def put_tag(self, tag: str, digest: str) -> None:
        self._tags[tag] = digest


def image(revision: object, inputs: str = A) -> dict[str, str]:
    return {REVISION_LABEL: str(revision), INPUTS_LABEL: inputs}


def test_names_are_made_as_promised() -> None:
    assert CPU.release_tag(3) == "0.28.0-cpu-r3"
    assert CPU.moving_tag == "0.28.0-cpu"


@pytest.mark.parametrize("revision", [0, -1, 10**9])
def test_a_number_out_of_range_is_refused(revision: int) -> None:
    with pytest.raises(UsageError):
        CPU.release_tag(revision)


@pytest.mark.parametrize(
    "tag",
    [
        "0.28.0-cpu",
        "0.28.0-cpu-r",
        "0.28.0-cpu-r0",
        "0.28.0-cpu-r01",
        "0.28.0-cpu-r1 ",
        "0.28.0-cpu-r1\n",
        "0.28.0-cpu-r-1",
        "0.28.0-cpu-r٣",
        "0.28.0-cpu-r1-r2",
        "x0.28.0-cpu-r1",
        "0.28.0-cuda-sm80-r1",
        "0.28.0-cpu-R1",
        "0.28.0.post1-cpu-r1",
        "latest",
        "5",
        "",
    ],
)
def test_other_tags_are_not_taken_for_numbers(tag: str) -> None:
    assert CPU.revision_of(tag) is None


def test_a_platform_that_looks_like_a_revision_is_refused() -> None:
    with pytest.raises(ValidationError, match="ends like a revision"):
        Line(base="0.28.0", platform="cpu-r2")


platforms = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+){0,3}", fullmatch=True)
bases = st.from_regex(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(\.post[0-9]{1,2})?", fullmatch=True).filter(str.isascii)


@calm
@given(bases, platforms, bases, platforms, st.integers(1, 10**9 - 1))
def test_no_two_lines_share_a_tag(base: str, platform: str, other_base: str, other: str, revision: int) -> None:
    try:
        mine, theirs = Line(base=base, platform=platform), Line(base=other_base, platform=other)
    except ValidationError:
        return
    tag = mine.release_tag(revision)
    assert mine.revision_of(tag) == revision
    if mine != theirs:
        assert theirs.revision_of(tag) is None
        assert theirs.moving_tag not in (tag, mine.moving_tag)


def test_first_next_and_same() -> None:
    assert choose_revision([], A) == 1
    assert choose_revision([(1, A), (4, B)], A) == 1
    assert choose_revision([(1, A), (4, A)], A) == 4
    assert choose_revision([(1, B), (4, B)], A) == 5
    assert choose_revision([(1, "")], A) == 2


def test_a_wanted_number_is_given_when_free_or_ours() -> None:
    assert choose_revision([(4, B)], A, wanted=2) == 2
    assert choose_revision([(2, A), (4, B)], A, wanted=2) == 2


@pytest.mark.parametrize("holder", [B, ""])
def test_a_wanted_number_of_other_inputs_is_refused(holder: str) -> None:
    with pytest.raises(RefusedError, match="revision 2 is taken") as caught:
        choose_revision([(2, holder), (7, A)], A, wanted=2)
    assert f"its inputs are {holder[:12] or 'unknown'}," in caught.value.why
    assert "give 8" in caught.value.do


def test_a_number_that_engine_and_registry_hold_differently_is_refused() -> None:
    with pytest.raises(RefusedError):
        choose_revision([(2, A), (2, B)], A, wanted=2)


def test_wanting_no_number_at_all_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        choose_revision([], A, wanted=0)
    with pytest.raises(UsageError):
        choose_revision([], "")


@calm
@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([A, B, ""]))), st.none() | st.integers(1, 60))
def test_a_chosen_number_never_belongs_to_other_inputs_only(
    existing: list[tuple[int, str]], wanted: int | None
) -> None:
    try:
        chosen = choose_revision(existing, A, wanted)
    except RefusedError:
        assert any(number == wanted and inputs != A for number, inputs in existing)
        return
    holders = {inputs for number, inputs in existing if number == chosen}
    assert not holders or A in holders


@pytest.mark.parametrize("text", ["", "0", "01", "-1", "1.0", "x", " 1"])
def test_a_label_is_read_strictly(text: str) -> None:
    assert labelled_revision({REVISION_LABEL: text}) is None
    assert labelled_revision({}) is None


def test_existing_revisions_read_labels_and_skip_the_rest() -> None:
    store = MemoryStore(
        {"0.28.0-cpu-r2": D2, "0.28.0-cpu-r1": D1, "0.28.0-cpu": D2, "0.28.0-cuda-sm80-r9": D3, "odd": D3},
        {D1: image(1), D2: {}, D3: image(9)},
    )
    assert existing_revisions(store, CPU) == [(1, A), (2, "")]


def test_a_name_that_goes_away_meanwhile_is_not_taken() -> None:
    class Fading(MemoryStore):
        def digest(self, tag: str) -> str | None:
            return None

    assert existing_revisions(Fading({"0.28.0-cpu-r1": D1}, {D1: image(1)}), CPU) == []


def test_a_first_image_gets_both_names() -> None:
    plan = plan_names(MemoryStore({}, {D1: image(1)}), CPU, 1, D1)
    assert (plan.give_release, plan.move) == (True, True)


def test_the_same_again_needs_nothing() -> None:
    store = MemoryStore({"0.28.0-cpu-r1": D1, "0.28.0-cpu": D1}, {D1: image(1)})
    plan = plan_names(store, CPU, 1, D1)
    assert (plan.give_release, plan.move) == (False, False)


def test_a_run_that_was_killed_between_the_names_is_completed() -> None:
    store = MemoryStore({"0.28.0-cpu-r1": D1, "0.28.0-cpu": D1, "0.28.0-cpu-r2": D2}, {D1: image(1), D2: image(2)})
    plan = plan_names(store, CPU, 2, D2)
    assert (plan.give_release, plan.move) == (False, True)


def test_a_number_never_moves() -> None:
    store = MemoryStore({"0.28.0-cpu-r1": D1}, {D1: image(1), D2: image(1)})
    with pytest.raises(RefusedError, match="already stands for"):
        plan_names(store, CPU, 1, D2)


@pytest.mark.parametrize(
    "tags",
    [{"0.28.0-cpu": D3, "0.28.0-cpu-r3": D3}, {"0.28.0-cpu": D3}, {"0.28.0-cpu-r3": D3}],
    ids=["whole", "number-gone", "moving-not-there-yet"],
)
def test_the_moving_name_never_goes_back(tags: dict[str, str]) -> None:
    plan = plan_names(MemoryStore(tags, {D2: image(2), D3: image(3)}), CPU, 2, D2)
    assert (plan.give_release, plan.move, plan.passed_by) == (True, False, 3)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({}, "states no revision"),
        (image(2), "calls itself revision 2 as well"),
        (image("zwei"), "states no revision"),
    ],
    ids=["none", "same-number", "words"],
)
def test_a_moving_name_that_cannot_be_ordered_is_refused(labels: dict[str, str], words: str) -> None:
    store = MemoryStore({"0.28.0-cpu": D3}, {D2: image(2), D3: labels})
    with pytest.raises(RefusedError, match=f"stands for an image that {words}"):
        plan_names(store, CPU, 2, D2)


@pytest.mark.parametrize("labels", [{}, image(1), image("2x")])
def test_an_image_is_named_by_its_label_only(labels: dict[str, str]) -> None:
    stated = "1" if labels == image(1) else "no revision"
    with pytest.raises(IntegrityError, match=f"cannot become revision 2.*states {stated}"):
        plan_names(MemoryStore({}, {D2: labels}), CPU, 2, D2)
