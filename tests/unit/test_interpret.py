"""Walking functions with values that are known in part."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.model.interpret import SELF, UNKNOWN, Env, Interpreter, RefusedError, Thing, join


def run(body: str, **known: Any) -> Any:
    """Return what `f` returns when its arguments have these values."""
    source = f"def f({', '.join(known)}):\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    return Interpreter(ast.parse(source)).call("f", list(known.values()), {}, {})


@pytest.mark.parametrize(
    ("body", "known", "result"),
    [
        ("return 1 if x else 2", {"x": True}, 1),
        ("return 1 if x else 2", {"x": UNKNOWN}, UNKNOWN),
        ("if x:\n    y = 1\nelse:\n    y = 1\nreturn y", {"x": UNKNOWN}, 1),
        ("if x:\n    y = 1\nelse:\n    y = 2\nreturn y", {"x": UNKNOWN}, UNKNOWN),
        ("if x:\n    raise E\nreturn 3", {"x": UNKNOWN}, 3),
        ("y = 1\nfor i in x:\n    y = 2\nreturn y", {"x": (1,)}, UNKNOWN),
        ("y = 1\nwhile x:\n    y = 1\nreturn y", {"x": UNKNOWN}, 1),
        ("try:\n    raise E\nexcept E:\n    return 4", {}, 4),
        ("with x:\n    y = 5\nreturn y", {"x": UNKNOWN}, 5),
        ("a, b = x\nreturn b", {"x": (1, 2)}, 2),
        ("a, b = x\nreturn b", {"x": UNKNOWN}, UNKNOWN),
        ("y += 1\nreturn y", {"y": 1}, UNKNOWN),
        ("match x:\n    case 1:\n        y = 1\n    case _:\n        y = 2\nreturn y", {"x": 1, "y": 2}, UNKNOWN),
        ("return 'a' in x", {"x": ("a", UNKNOWN)}, True),
        ("return 'a' not in x", {"x": ("b", UNKNOWN)}, UNKNOWN),
        ("return x is None", {"x": Thing("thing")}, False),
        ("return x < 3", {"x": 2}, UNKNOWN),
        ("return x or y", {"x": UNKNOWN, "y": True}, True),
        ("return x and y", {"x": UNKNOWN, "y": False}, False),
        ("return x and y", {"x": UNKNOWN, "y": True}, UNKNOWN),
        ("return any(i == 2 for i in x)", {"x": (1, 2)}, True),
        ("return all(i != 3 for i in x)", {"x": (1, UNKNOWN)}, UNKNOWN),
        ("return [i for i in x if i == 1]", {"x": (1, 2)}, (1,)),
        ("return getattr(x, 'a', 7)", {"x": Thing("closed", (("b", 1),), closed=True)}, 7),
        ("return getattr(x, 'a', 7)", {"x": Thing("open", (("b", 1),))}, UNKNOWN),
        ("return hasattr(x, 'a')", {"x": Thing("closed", (("b", 1),), closed=True)}, False),
        ("return hasattr(x, 'b')", {"x": Thing("closed", (("b", 1),), closed=True)}, True),
        ("return (y := x) and y", {"x": 5}, 5),
        ("return open(x)", {"x": "file"}, UNKNOWN),
        ("return lambda: x", {"x": 1}, UNKNOWN),
    ],
)
def test_value(body: str, known: dict[str, Any], result: Any) -> None:
    found = run(body, **known)
    assert found is UNKNOWN if result is UNKNOWN else found == result


@pytest.mark.parametrize(
    "body",
    [
        "raise E",
        "if x:\n    raise E\nelse:\n    raise E",
        "assert False",
        "try:\n    raise E\nfinally:\n    y = 1",
        "try:\n    y = 1\nfinally:\n    raise E",
    ],
)
def test_refusal(body: str) -> None:
    with pytest.raises(RefusedError):
        run(body, x=UNKNOWN)


def test_refusal_of_a_callee_ends_the_caller() -> None:
    tree = ast.parse("def g(x):\n    if x != 1:\n        raise E\n\ndef f(x):\n    g(x=x)\n    return 2\n")
    assert Interpreter(tree).call("f", [1], {}, {}) == 2
    with pytest.raises(RefusedError):
        Interpreter(tree).call("f", [3], {}, {})


def test_methods_defaults_and_settings_of_a_callee() -> None:
    class Settings(Interpreter):
        def set_attribute(self, base: Any, name: str, value: Any, env: Env) -> None:
            env[f".{name}"] = value

    tree = ast.parse("def f(self, x):\n    self.g(x)\n\ndef g(self, x, y=4):\n    if x:\n        self.a = y\n")
    for known, wanted in ((True, 4), (False, 0), (UNKNOWN, UNKNOWN)):
        env: Env = {".a": 0, "local": 1}
        Settings(tree).call("f", [SELF, known], {}, env)
        assert env == {".a": wanted, "local": 1}


def test_endless_recursion_is_unknown() -> None:
    assert Interpreter(ast.parse("def f(x):\n    return f(x)\n")).call("f", [1], {}, {}) is UNKNOWN


@given(*[st.dictionaries(st.sampled_from("abc"), st.sampled_from([1, 2, True, UNKNOWN])) for _ in range(2)])
def test_join_claims_nothing_that_one_side_denies(left: Env, right: Env) -> None:
    both = join(left, right)
    assert both is not None
    for name, value in both.items():
        assert value is UNKNOWN or (value == left[name] and value == right[name])
    assert join(left, None) == left
    assert join(None, right) == right
