"""Typed files: strict, frozen, one clear line for a mistake."""

from __future__ import annotations

import pytest

from seatrial.model.errors import ALL_ERRORS, LockError, SeatrialError, UsageError
from seatrial.model.platforms import Platform, PlatformTable
from seatrial.model.values import canonical_json, digest_of, parse_json, parse_toml

ROW = 'name = "cpu"\nfamily = "cpu"\ndevice = "cpu"\nmachine = "x86_64"\n'


def test_toml_becomes_a_frozen_value() -> None:
    row = parse_toml(Platform, ROW, "row")
    assert row.name == "cpu"
    with pytest.raises(ValueError, match="frozen"):
        row.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "row is not valid TOML"),
        (ROW + "surprise = 1\n", "row: surprise"),
        (ROW.replace('"cpu"', "7", 1), "row: name"),
        (ROW.replace('name = "cpu"', 'name = "CPU!"'), "row: name"),
        (ROW.replace("machine", "maschine"), "row: machine"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_place(text: str, said: str) -> None:
    with pytest.raises(LockError) as caught:
        parse_toml(Platform, text, "row")
    assert caught.value.what.startswith(said)
    assert "\n" not in str(caught.value)


def test_broken_json_says_what_to_do() -> None:
    with pytest.raises(LockError) as caught:
        parse_json(Platform, b"{", "file")
    assert caught.value.do


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"b": [1, "ü"], "a": None}) == '{"a":null,"b":[1,"ü"]}'.encode()
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": "1"})


def test_an_unknown_platform_is_answered_with_the_known_ones() -> None:
    table = PlatformTable(platforms=(parse_toml(Platform, ROW, "row"),))
    with pytest.raises(UsageError) as caught:
        table.row("gpu")
    assert "cpu" in caught.value.why


def test_every_error_has_its_own_exit_code_and_label() -> None:
    assert len({error.code for error in ALL_ERRORS}) == len(ALL_ERRORS)
    assert len({error.label for error in ALL_ERRORS}) == len(ALL_ERRORS)
    assert all(0 < error.code < 256 for error in ALL_ERRORS)


def test_the_list_of_errors_is_closed() -> None:
    def below(kind: type[SeatrialError]) -> set[type[SeatrialError]]:
        return {kind}.union(*(below(sub) for sub in kind.__subclasses__()))

    assert below(SeatrialError) == set(ALL_ERRORS)
