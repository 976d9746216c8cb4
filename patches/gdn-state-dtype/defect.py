"""Find CPU Gated DeltaNet dtypes that are not settled while the configuration is checked.

The CPU platform's config check is interpreted, not searched: it is walked with what is known of a Gated DeltaNet
model (its layer types, its dtypes) and of the host (with every CPU feature, or with none), everything else being
unknown. What comes out of it is held against what the forward path demands:

- `state-dtype-default`: with defaults the state is not allocated in float32 on some host, though the kernels take
  nothing else. That they take nothing else is read from the check itself: on a host with every CPU feature it does
  not let a bfloat16 state pass. Where the check never looks at the state's dtype, float32 is assumed to be needed.
- `dtype-refused-late`: the forward path asserts on the activations' dtype, and the check lets another one pass.

A mending in another place (a hook of one model, say) is not seen: the defect is then reported, and a person looks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.model.fixes import Finding
from seatrial.model.interpret import SELF, UNKNOWN, Env, Interpreter, RefusedError, Thing
from seatrial.model.modules import Source, cpu_kernel_modules, function_line, modules
from seatrial.model.tree import Tree

FIX = "gdn-state-dtype"
DTYPES = ("bfloat16", "float16", "float32")
STATE = "mamba_ssm_cache_dtype"
CHECK = "check_and_update_config"
CALCULATOR = "gated_delta_net_state_dtype"
KERNEL = "gated_delta_rule"


@dataclass(frozen=True)
class Dtype:
    """A torch dtype."""

    name: str


TORCH, FEATURES, CURRENT_PLATFORM = Thing("torch"), Thing("torch.cpu"), Thing("current_platform")
CACHE = Thing("cache_config")
HF_CONFIG = Thing(
    "hf_config",
    (
        ("model_type", "qwen3_next"),
        ("architectures", ("Qwen3NextForCausalLM",)),
        ("layer_types", ("linear_attention", "full_attention")),
        *((f"linear_{name}", 4) for name in ("conv_kernel_dim", "num_key_heads", "num_value_heads")),
        *((f"linear_{name}", 128) for name in ("key_head_dim", "value_head_dim")),
    ),
    closed=True,
)
MODEL = Thing(
    "model_config",
    (
        ("hf_config", HF_CONFIG),
        ("hf_text_config", HF_CONFIG),
        ("architecture", "Qwen3NextForCausalLM"),
        ("is_hybrid", True),
        ("has_inner_state", True),
    ),
)
CONFIG = Thing("vllm_config", (("model_config", MODEL), ("cache_config", CACHE)))


class Walk(Interpreter):
    """Walk a module of vLLM's for a Gated DeltaNet model on the CPU.

    Args:
        features: what every question about CPU features is answered with.
    """

    def __init__(self, tree: ast.Module, *, features: bool) -> None:
        super().__init__(tree)
        self.features = features
        self.looked = False
        """Whether the state's dtype was looked at."""

    def name(self, name: str) -> Any:
        """Know torch and the platform."""
        return {"torch": TORCH, "current_platform": CURRENT_PLATFORM}.get(name, UNKNOWN)

    def attribute(self, base: Any, name: str, env: Env, default: Any = UNKNOWN) -> Any:
        """Know dtypes, and the two settings that a check may change."""
        if base is TORCH:
            return FEATURES if name == "cpu" else Dtype(name) if name in DTYPES else UNKNOWN
        if base is CACHE and name == STATE:
            self.looked = True
            return env[".state"]
        if base is MODEL and name == "dtype":
            return env[".dtype"]
        if base in (FEATURES, CURRENT_PLATFORM):
            return Thing(f"{base.name}.{name}")
        return super().attribute(base, name, env, default)

    def set_attribute(self, base: Any, name: str, value: Any, env: Env) -> None:
        """Follow the two settings."""
        if base is CACHE and name == STATE:
            env[".state"] = value
        if base is MODEL and name == "dtype":
            env[".dtype"] = value

    def item(self, base: Any, key: Any) -> Any:
        """Look a dtype up by its name."""
        return Dtype(key) if isinstance(key, str) and key in DTYPES else UNKNOWN

    def outside(self, function: Any, name: str, values: Sequence[Any]) -> Any:
        """Answer for the host, and for vLLM's own reading of a cache dtype."""
        match name, values:
            case "get_kv_cache_torch_dtype", [str(wanted), model]:
                return model if wanted == "auto" else Dtype(wanted)
        owner, _, question = function.name.rpartition(".") if isinstance(function, Thing) else ("", "", "")
        if owner == FEATURES.name:
            return self.features
        if owner == CURRENT_PLATFORM.name and question.startswith("is_"):
            return question == "is_cpu"
        return UNKNOWN


@dataclass(frozen=True)
class Outcome:
    """What a config check makes of its input."""

    refused: bool
    state: Any
    dtype: Any
    looked: bool


def subject(tree: Tree) -> bool:
    """Tell whether the tree runs Gated DeltaNet layers on CPU kernels at all."""
    return bool(cpu_kernel_modules(tree, KERNEL))


def detect(tree: Tree) -> list[Finding]:
    """Return a finding for each part of the defect."""
    kernels = cpu_kernel_modules(tree, KERNEL)
    check = _config_check(tree)
    if not kernels:
        return []
    return [*_state_findings(tree, check, kernels[0]), *_dtype_findings(check, kernels)]


def _state_findings(tree: Tree, check: Source, kernel: Source) -> Iterator[Finding]:
    full = _outcome(check, Dtype("bfloat16"), "bfloat16", features=True)
    if full.looked and not full.refused and full.state != "float32":
        return
    bare = _outcome(check, Dtype("bfloat16"), "auto", features=False)
    if bare.refused or _allocated(tree, bare) == Dtype("float32"):
        return
    yield Finding(
        fix=FIX,
        part="state-dtype-default",
        path=check.path,
        line=_reset_line(check.tree),
        message=f"without AMX the state of a Gated DeltaNet layer follows the model's dtype,"
        f" and the kernels called in {kernel.path} take float32 only",
    )


def _dtype_findings(check: Source, kernels: Sequence[Source]) -> Iterator[Finding]:
    for kernel in kernels:
        for line, denied in _late_refusals(kernel.tree):
            passed = [name for name in denied if _passes(check, name)]
            if passed:
                yield Finding(
                    fix=FIX,
                    part="dtype-refused-late",
                    path=kernel.path,
                    line=line,
                    message=f"a model in {' or '.join(passed)} reaches this line with its first request:"
                    f" {check.path} lets it pass when the configuration is checked",
                )


def _passes(check: Source, name: str) -> bool:
    outcomes = [_outcome(check, Dtype(name), "auto", features=features) for features in (False, True)]
    return any(not outcome.refused and outcome.dtype in (Dtype(name), UNKNOWN) for outcome in outcomes)


def _outcome(check: Source, dtype: Dtype, state: str, *, features: bool) -> Outcome:
    walk = Walk(check.tree, features=features)
    env: Env = {".dtype": dtype, ".state": state}
    try:
        walk.call(CHECK, [SELF, CONFIG], {}, env)
    except RefusedError:
        return Outcome(True, UNKNOWN, UNKNOWN, walk.looked)
    return Outcome(False, env[".state"], env[".dtype"], walk.looked)


def _allocated(tree: Tree, outcome: Outcome) -> Any:
    """Return the dtype that the state is allocated in, as the calculator that every model asks says."""
    for source in modules(tree, CALCULATOR):
        if function_line(source.tree, CALCULATOR):
            walk = Walk(source.tree, features=False)
            env: Env = {".dtype": outcome.dtype, ".state": outcome.state}
            dtypes = walk.call(CALCULATOR, [SELF, outcome.dtype, "auto", outcome.state], {}, env)
            return dtypes[1] if isinstance(dtypes, tuple) and len(dtypes) > 1 else UNKNOWN
    return Dtype(outcome.state) if outcome.state in DTYPES else UNKNOWN


def _config_check(tree: Tree) -> Source:
    """Return the module of the CPU platform."""
    for source in modules(tree, CHECK, below="vllm/platforms/"):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef) and any(_says_cpu(item) for item in node.body):
                return source
    return Source("vllm/platforms", ast.Module(body=[], type_ignores=[]))


def _says_cpu(node: ast.stmt) -> bool:
    match node:
        case (
            ast.AnnAssign(target=ast.Name(id="device_type"), value=ast.Constant(value="cpu"))
            | ast.Assign(targets=[ast.Name(id="device_type")], value=ast.Constant(value="cpu"))
        ):
            return True
    return False


def _reset_line(tree: ast.Module) -> int:
    """Return the line that sets the state's dtype, that of the check if none does."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(attr=name)]) if name == STATE:
                return node.lineno
    return function_line(tree, CHECK) or 1


def _late_refusals(tree: ast.Module) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each assertion on a tensor's dtype: its line, and the dtypes that neither it nor a branch takes."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        taken = {name for node in ast.walk(function) for name in _dtypes_compared(node)}
        for node in ast.walk(function):
            if isinstance(node, ast.Assert) and any(_dtypes_compared(part) for part in ast.walk(node.test)):
                yield node.lineno, tuple(name for name in DTYPES if name not in taken)


def _dtypes_compared(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Compare(left=ast.Attribute(attr="dtype"), comparators=[other]):
            named = [part.attr for part in ast.walk(other) if isinstance(part, ast.Attribute)]
            return tuple(name for name in named if name in DTYPES)
    return ()
