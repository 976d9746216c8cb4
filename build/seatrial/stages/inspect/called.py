"""Operators that vLLM's own Python calls: the ones that this image's device reaches are registered by an extension.

Which code a device reaches cannot be known without running it. What is certain enough is read: modules and functions
named after the device, and what stands under `if current_platform.is_<device>():`. A call of `vllm._custom_ops` from
there leads to the operators that the wrapper calls.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from seatrial.stages.inspect.extensions import loaded
from seatrial.stages.inspect.subject import Found, Image

NAMESPACE = re.compile(r"^_(?:\w+_)?C(?:_\w+)?$")
"""Namespaces of vLLM's extensions (`_C`, `_moe_C`, `_C_cache_ops`); Python registers the ones without this form."""

WORDS = {"cpu": ("cpu",), "cuda": ("cuda",), "rocm": ("rocm", "hip", "aiter"), "xpu": ("xpu",)}
"""Words in names of modules and functions that belong to one device."""

OTHER_MEANING = (
    re.compile(r"(?:^|/)(?:kv_offload|offloading|simple_kv_offload|kv_transfer|kv_connector|ec_transfer)(?:/|$)"),
    re.compile(r"(?:cpu_gpu|gpu_cpu|cpu_offload|offload_cpu|cpu_communicator|cpu_binding|ipc_cpu)"),
)
"""Paths in which the word means the host's memory beside a GPU."""

WRAPPERS = "vllm._custom_ops"
_WRAPPERS_FILE = "vllm/_custom_ops.py"
_KEPT = 4 << 20
_ASKED_FOR = re.compile(r"hasattr\(\s*torch\.ops(?:\.(\w+))?,\s*['\"](\w+)['\"]")
_MARK = re.compile(r"torch\.ops\._|_custom_ops")


@dataclass(frozen=True, slots=True)
class Use:
    """One operator that some line of vLLM calls."""

    operator: str
    """`namespace::name`."""
    place: str
    """`file:line`, below the site folder."""
    through: str = ""
    """The wrapper in `vllm._custom_ops`, when it is called through one."""


@dataclass(slots=True)
class _Reader(ast.NodeVisitor):
    """Collect the operators that one module uses in code for one device."""

    path: str
    words: tuple[str, ...]
    whole: bool
    """Every line of the module is the device's."""
    wrappers: dict[str, tuple[str, ...]]
    marked: int = 0
    others: int = 0
    uses: list[Use] = field(default_factory=list)
    aliases: set[str] = field(default_factory=set)
    imported: dict[str, str] = field(default_factory=dict)
    platforms: tuple[str, ...] = tuple(f"is_{device}" for device in WORDS)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Learn under which names the wrappers are called."""
        for alias in node.names:
            if node.module == "vllm" and alias.name == "_custom_ops":
                self.aliases.add(alias.asname or alias.name)
            if node.module == WRAPPERS:
                self.imported[alias.asname or alias.name] = alias.name

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Enter a function, whose name may say for which device it is."""
        other = any(_named(node.name, words) for words in WORDS.values() if words != self.words)
        mine = not other and _named(node.name, self.words)
        self.marked += mine
        self.others += other
        self.generic_visit(node)
        self.marked -= mine
        self.others -= other

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_If(self, node: ast.If) -> None:
        """Enter the branch of a question about the device."""
        asked = _asked(node.test)
        self.visit(node.test)
        mine = asked == f"is_{self.words[0]}"
        other = not mine and asked.startswith(self.platforms)
        self.marked += mine
        self.others += other
        for child in node.body:
            self.visit(child)
        self.marked -= mine
        self.others -= other
        for child in node.orelse:
            self.visit(child)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Take `torch.ops.NS.NAME` and `ops.NAME`."""
        if operator := _operator(node):
            self._take(operator, node.lineno)
        elif isinstance(node.value, ast.Name) and node.value.id in self.aliases:
            self._through(node.attr, node.lineno)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """Take a wrapper that was imported by name."""
        if node.id in self.imported:
            self._through(self.imported[node.id], node.lineno)

    def _through(self, wrapper: str, line: int) -> None:
        for operator in self.wrappers.get(wrapper, ()):
            self._take(operator, line, wrapper)

    def _take(self, operator: str, line: int, through: str = "") -> None:
        reached = (self.whole or self.marked) and not self.others
        if reached:
            self.uses.append(Use(operator, f"{self.path}:{line}", through))


def keeps(path: str, size: int) -> bool:
    """Tell whether a file's bytes are needed: the Python code of vLLM."""
    return size <= _KEPT and path.endswith(".py") and "-packages/vllm/" in path


def check_operators_called(image: Image) -> Found:
    """Compare the operators that code for this device calls with those that the extensions register."""
    vllm = image.python.vllm
    answer = loaded(image)
    if vllm is None or answer is None:
        return Found(("the extensions could not be loaded, so what they register is not known: see extensions",))
    platform = answer["platform"].get("answer", {})
    device = image.expected.device if image.expected else str(platform.get("device_type", ""))
    if device not in WORDS:
        return Found(not_run="not run: vLLM recognises no device here, and nobody says which one the image is for")
    excused = image.excused("operators-called")
    registered = _registered(answer)
    uses = called_operators(_sources(image, vllm.site), device)
    lost: dict[str, Use] = {}
    for use in uses:
        if use.operator not in registered and not excused.allows(f"{use.operator}: {use.place}"):
            lost.setdefault(use.operator, use)
    problems = [
        f"{use.place} calls {name}{f' through {WRAPPERS}.{use.through}' if use.through else ''}, "
        "and no extension in the image registers it"
        for name, use in sorted(lost.items())
    ]
    measured = {
        "device": device,
        "registered": len(registered),
        "called": sorted({use.operator for use in uses}),
        **excused.measured(),
    }
    return Found(tuple(problems), measured)


def called_operators(sources: dict[str, str], device: str) -> tuple[Use, ...]:
    """Return what the code for one device calls.

    Args:
        sources: path below the site folder to text; files that cannot be parsed count for nothing.

    An operator that vLLM asks for with `hasattr` anywhere is one that a build may lack, and does not count.
    """
    wrappers = _wrappers(sources.get(_WRAPPERS_FILE, ""))
    optional = {f"{m[1]}::{m[2]}" for text in sources.values() if "hasattr" in text for m in _ASKED_FOR.finditer(text)}
    uses: list[Use] = []
    for path, text in sorted(sources.items()):
        whole = _named_path(path, WORDS[device])
        told = whole or any(word in text.lower() for word in WORDS[device])
        tree = _parsed(text) if told and _MARK.search(text) else None
        if tree is None or path == _WRAPPERS_FILE or any(pattern.search(path) for pattern in OTHER_MEANING):
            continue
        reader = _Reader(path, WORDS[device], whole, wrappers)
        for node in ast.walk(tree):  # imports may stand below their use
            if isinstance(node, ast.ImportFrom):
                reader.visit_ImportFrom(node)
        reader.visit(tree)
        uses += (use for use in reader.uses if use.operator not in optional)
    return tuple(uses)


def _registered(answer: dict[str, object]) -> set[str]:
    results = [*dict(answer["extensions"]).values(), answer["platform"]]  # type: ignore[call-overload]
    return {str(name).split(".")[0] for result in results for name in result.get("operators", ())}


def _sources(image: Image, site: str) -> dict[str, str]:
    prefix = f"{site}/"
    return {
        path.removeprefix(prefix): data.decode(errors="replace")
        for path, data in image.root.kept.items()
        if path.startswith(f"{prefix}vllm/") and path.endswith(".py")
    }


def _wrappers(text: str) -> dict[str, tuple[str, ...]]:
    """Return for each function of `vllm._custom_ops` the operators that it calls and does not ask for first."""
    tree = _parsed(text)
    found: dict[str, tuple[str, ...]] = {}
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef):
            reader = _Reader("", ("",), True, {})
            for child in node.body:
                reader.visit(child)
            found[node.name] = tuple(dict.fromkeys(use.operator for use in reader.uses))
    return found


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _operator(node: ast.Attribute) -> str:
    """Return `namespace::name` of `torch.ops.NAMESPACE.NAME`, nothing for another attribute."""
    space = node.value
    if not isinstance(space, ast.Attribute) or not NAMESPACE.match(space.attr):
        return ""
    ops = space.value
    whole = isinstance(ops, ast.Attribute) and ops.attr == "ops" and isinstance(ops.value, ast.Name)
    return f"{space.attr}::{node.attr}" if whole and ops.value.id == "torch" else ""  # type: ignore[attr-defined]


def _asked(test: ast.expr) -> str:
    """Return `is_cpu` of `current_platform.is_cpu()`, alone or as a part of an `and`."""
    for node in [test, *(test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else ())]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("is_"):
            return node.func.attr
    return ""


def _named(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name.lower().split("_") for word in words)


def _named_path(path: str, words: tuple[str, ...]) -> bool:
    return any(_named(part, words) for part in path.removesuffix(".py").split("/")[1:])
