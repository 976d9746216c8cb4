"""Find metadata builders of CPU Gated DeltaNet layers that count the first token of a prompt as a decode.

Decodes start from the state in their slot; only prefills look at has_initial_state. The split between the two goes by
the length of the query alone unless `split_decodes_and_prefills` is told otherwise, so a first chunk of one token (a
prompt of one token, or one that the token budget cut there) starts from what an earlier request left in the slot.

Looked at are the modules whose metadata the CPU kernels of the gated delta rule take: every call of the split in them
has to say that short extends are no decodes, by the keyword, by position, or by the function's default. A value that
is worked out when the batch is built counts as said. Rows that are sorted before or after the call, or a state that
is cleared elsewhere, are not seen: the defect is then reported, and a person looks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from seatrial.model.fixes import Finding
from seatrial.model.modules import Source, called, cpu_kernel_modules, modules
from seatrial.model.tree import Tree

FIX = "gdn-one-token-prompt"
PART = "first-token-as-decode"
KERNEL = "gated_delta_rule"
SPLIT = "split_decodes_and_prefills"
SHORT = "treat_short_extends_as_decodes"


def subject(tree: Tree) -> bool:
    """Tell whether the tree runs Gated DeltaNet layers on CPU kernels at all."""
    return bool(cpu_kernel_modules(tree, KERNEL))


def detect(tree: Tree) -> list[Finding]:
    """Return a finding for each split that takes a first token for a decode."""
    kernels = cpu_kernel_modules(tree, KERNEL)
    wanted = {name for source in kernels for name in _metadata_taken(source.tree)}
    if not wanted:
        return []
    splitting = list(modules(tree, SPLIT))
    signature = _signature(splitting)
    return [
        Finding(
            fix=FIX,
            part=PART,
            path=source.path,
            line=call.lineno,
            message=f"a first chunk of one token is counted as a decode, and {kernels[0].path} then starts from"
            " the state that an earlier request left in the slot",
        )
        for source in splitting
        if wanted & _classes(source.tree)
        for call in _splits(source.tree)
        if _short_is_decode(call, signature)
    ]


def _short_is_decode(call: ast.Call, signature: ast.arguments | None) -> bool:
    """Tell whether a call of the split is sure to count short extends as decodes."""
    names = [argument.arg for argument in signature.args] if signature else []
    given = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    given |= dict(zip(names, call.args, strict=False))
    value = given.get(SHORT) or _default(signature)
    return isinstance(value, ast.Constant) and bool(value.value)


def _default(signature: ast.arguments | None) -> ast.expr:
    """Return what the split takes when a call says nothing; before it had the parameter, they were decodes."""
    if signature:
        known = [*signature.args[len(signature.args) - len(signature.defaults) :], *signature.kwonlyargs]
        for argument, value in zip(known, [*signature.defaults, *signature.kw_defaults], strict=True):
            if argument.arg == SHORT and value is not None:
                return value
    return ast.Constant(value=True)


def _signature(sources: list[Source]) -> ast.arguments | None:
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == SPLIT:
                return node.args
    return None


def _splits(tree: ast.Module) -> Iterator[ast.Call]:
    aliases = _aliases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in aliases:
            yield node


def _aliases(tree: ast.Module) -> set[str]:
    """Return the names that the split goes by in a module."""
    named = {SPLIT}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            named |= {alias.asname for alias in node.names if alias.name == SPLIT and alias.asname}
    return named


def _metadata_taken(tree: ast.Module) -> Iterator[str]:
    """Yield the attention metadata classes that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name.endswith("Metadata"))


def _classes(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
