"""Find Gated DeltaNet layers of the Qwen3-Next kind that have no way to run on XPU or on a CPU.

Such a layer is a class that keeps a Gated DeltaNet state and projects to q, k, v and z at once (`in_proj_qkvz`), the
input of the fused kernel. What the class can reach from `__init__` and `forward` is followed by name: methods,
functions, and the custom ops that modules register.

- `xpu-forward`: nothing that the layer does under `is_xpu()` reaches `_xpu_C.gdn_attention`, or A_log is not allocated
  in float32, which the kernel demands.
- `cpu-forward`: the layer does nothing of its own under `is_cpu()`.
- `conv-weight-rank`: the dispatch of CPU matrix products unpacks a weight's sizes into two names, and no test of the
  number of dimensions ends the function before; the weight of the layer's convolution has three.
- `state-dtype-ignored`: the dtypes of the state are worked out without the dtype asked for the recurrent half.
- `norm-in-half`: the gated norm in plain PyTorch squares in the dtype of the activations.

A forward that is picked in another way (a plugin that replaces the class, say) is not seen: a person looks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from seatrial.model.fixes import Finding
from seatrial.model.modules import called, modules
from seatrial.model.tree import Tree

FIX = "gdn-fused-path"
PROJECTION = "in_proj_qkvz"
SHAPE = "gated_delta_net_state_shape"
DTYPES = "gated_delta_net_state_dtype"
OP = "gdn_attention"
NAMESPACE = "_xpu_C"
REGISTER = "direct_register_custom_op"
PLACES = ("forward", "__init__")


def subject(tree: Tree) -> bool:
    """Tell whether the tree has a layer that projects to qkvz and keeps a Gated DeltaNet state."""
    return any(True for _ in _layers(tree))


def detect(tree: Tree) -> list[Finding]:
    """Return what stops such layers on XPU and on a CPU, or makes them wrong there."""
    layers = list(_layers(tree))
    if not layers:
        return []
    reach = _Reach(tree)
    found = [finding for path, layer in layers for finding in _layer(path, layer, reach)]
    for path, line in _two_names(tree):
        found.append(_finding("conv-weight-rank", path, line, "a weight that is no matrix ends the engine at start"))
    for path, line in _state_dtypes(tree):
        found.append(_finding("state-dtype-ignored", path, line, "--mamba-ssm-cache-dtype is not looked at"))
    for path, line in _half_norms(tree):
        message = "squares in the dtype of the activations: float16 overflows at 256"
        found.append(_finding("norm-in-half", path, line, message))
    return found


def _finding(part: str, path: str, line: int, message: str) -> Finding:
    return Finding(fix=FIX, part=part, path=path, line=line, message=message)


def _layers(tree: Tree) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the classes that assign the projection and work out the shape of their own state."""
    for source in modules(tree, PROJECTION):
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and {"get_state_shape", "__init__"} <= dict(_methods(node)).keys():
                state = SHAPE in _names(node)
                if state and PROJECTION in _assigned(node):
                    yield source.path, node


def _layer(path: str, layer: ast.ClassDef, reach: _Reach) -> Iterator[Finding]:
    """Yield what one layer lacks."""
    methods = dict(_methods(layer))
    xpu, cpu = (_under(layer, test) for test in ("is_xpu", "is_cpu"))
    if not any(reach.kernel(name, methods) for name in xpu):
        yield _finding("xpu-forward", path, layer.lineno, f"nothing in {layer.name} reaches {NAMESPACE}.{OP} on XPU")
    elif not _is_float32(layer, "A_log"):
        yield _finding("xpu-forward", path, layer.lineno, f"A_log of {layer.name} is not float32, as {OP} demands")
    if not any(name in methods and name not in xpu for name in cpu):
        yield _finding("cpu-forward", path, layer.lineno, f"{layer.name} has no forward for a CPU, only Triton kernels")


class _Reach:
    """What the functions of a tree refer to, by name."""

    def __init__(self, tree: Tree) -> None:
        self._functions: dict[str, set[str]] = {}
        self._kernels: set[str] = set()
        for source in modules(tree, OP):
            for node in ast.walk(source.tree):
                if isinstance(node, ast.FunctionDef):
                    self._add(node.name, node)
                elif isinstance(node, ast.Call) and called(node) == REGISTER:
                    given = {keyword.arg: keyword.value for keyword in node.keywords}
                    if isinstance(name := given.get("op_name"), ast.Constant) and "op_func" in given:
                        self._add(str(name.value), given["op_func"])

    def _add(self, name: str, node: ast.AST) -> None:
        self._functions.setdefault(name, set()).update(_names(node))
        if any(_is_op(one) for one in ast.walk(node)):
            self._kernels.add(name)

    def kernel(self, start: str, methods: dict[str, ast.FunctionDef]) -> bool:
        """Tell whether a name leads to the fused kernel."""
        seen: set[str] = set()
        todo = [start]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self._kernels:
                return True
            todo += self._functions.get(name, set())
            if name in methods:
                todo += _names(methods[name])
        return False


def _is_op(node: ast.AST) -> bool:
    """Tell whether a node is `<...>._xpu_C.gdn_attention`."""
    match node:
        case ast.Attribute(attr="gdn_attention", value=ast.Attribute(attr="_xpu_C") | ast.Name(id="_xpu_C")):
            return True
    return False


def _under(layer: ast.ClassDef, test: str) -> set[str]:
    """Return the names in branches of the layer's constructor and forward that a platform test guards."""
    found: set[str] = set()
    for name, method in _methods(layer):
        if name in PLACES:
            for node in ast.walk(method):
                if isinstance(node, ast.If) and test in _names(node.test):
                    found |= set().union(*map(_names, node.body))
    if any("CustomOp" in _names(base) for base in layer.bases):
        found.add(test.replace("is_", "forward_"))
    return found


def _two_names(tree: Tree) -> Iterator[tuple[str, int]]:
    """Yield where a weight's sizes are unpacked into two names, whatever their number."""
    for source in modules(tree, "cpu_linear"):
        for function in ast.walk(source.tree):
            if isinstance(function, ast.FunctionDef) and "cpu_linear" in _assigned(function):
                for statement in function.body:
                    if isinstance(statement, ast.If) and _tests_rank(statement):
                        break
                    if _unpacks_two(statement):
                        yield source.path, statement.lineno


def _tests_rank(statement: ast.If) -> bool:
    ends = isinstance(statement.body[-1], ast.Return | ast.Raise)
    return ends and bool({"dim", "ndim", "len"} & _names(statement.test))


def _unpacks_two(statement: ast.stmt) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=[_, _])], value=value):
            return "weight" in _names(value) and bool({"size", "shape"} & _names(value))
    return False


def _state_dtypes(tree: Tree) -> Iterator[tuple[str, int]]:
    """Yield where the dtypes of the state are defined or asked for without the recurrent half's."""
    for source in modules(tree, DTYPES):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef) and node.name == DTYPES:
                if not any("ssm" in argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]):
                    yield source.path, node.lineno
            elif called(node) == DTYPES and not any("ssm" in name for name in _names(node)):
                yield source.path, node.lineno


def _half_norms(tree: Tree) -> Iterator[tuple[str, int]]:
    """Yield the squares of gated norms in functions that never say float32."""
    for source in modules(tree, "class RMSNormGated"):
        for layer in source.tree.body:
            if isinstance(layer, ast.ClassDef) and layer.name == "RMSNormGated":
                for _, method in _methods(layer):
                    if {"float", "float32"} & _names(method):
                        continue
                    for node in ast.walk(method):
                        if called(node) in ("pow", "square"):
                            yield source.path, node.lineno
                            break


def _is_float32(layer: ast.ClassDef, name: str) -> bool:
    """Tell whether the layer makes a parameter float32, where it is allocated or where it is handed over."""
    for node in ast.walk(layer):
        match node:
            case ast.Assign(targets=targets, value=value) if name in map(_last, targets):
                pass
            case ast.keyword(arg=arg, value=value) if arg == name:
                pass
            case _:
                continue
        if {"float", "float32"} & _names(value):
            return True
    return False


def _methods(layer: ast.ClassDef) -> Iterable[tuple[str, ast.FunctionDef]]:
    return [(node.name, node) for node in layer.body if isinstance(node, ast.FunctionDef)]


def _assigned(node: ast.AST) -> set[str]:
    return {_last(target) for one in ast.walk(node) if isinstance(one, ast.Assign) for target in one.targets}


def _names(node: ast.AST) -> set[str]:
    """Return the names and attributes that a piece of code refers to."""
    return {_last(one) for one in ast.walk(node)} - {""}


def _last(node: ast.AST) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""
