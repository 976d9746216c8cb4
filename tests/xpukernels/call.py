"""One call of the operator, with the sizes that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NAMES = {torch.bfloat16: "BFloat16", torch.float16: "Half", torch.float32: "Float", torch.float64: "Double"}


class ContractError(RuntimeError):
    """What the kernel does not check and would read as something else."""


def demand(condition: bool, message: str) -> None:
    """Raise what the kernel raises."""
    if not condition:
        raise RuntimeError(message)


def refuse(condition: bool, message: str) -> None:
    """Raise what only the strict mode raises."""
    if condition:
        raise ContractError(f"not checked by the kernel: {message}")


def name_of(dtype: torch.dtype) -> str:
    """Return a dtype as C++ prints it."""
    return NAMES.get(dtype, str(dtype))


def seen_as(tensor: torch.Tensor, dtype: torch.dtype, what: str) -> torch.Tensor:
    """Return the tensor with its bits read as another dtype, the way a cast pointer reads them."""
    if tensor.dtype == dtype:
        return tensor
    if tensor.element_size() == dtype.itemsize:
        return tensor.view(dtype)
    raise ContractError(f"{what} is {tensor.dtype} and read as {dtype}: beyond its end, which no CPU can imitate")


@dataclass
class Call:
    """The arguments, by the names of the schema; those that a version lacks stay empty."""

    core_attn_out: torch.Tensor
    z: torch.Tensor
    projected_states_qkvz: torch.Tensor
    projected_states_ba: torch.Tensor
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_state: torch.Tensor
    ssm_state: torch.Tensor
    conv_weights: torch.Tensor
    conv_bias: torch.Tensor | None
    activation: str
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    num_prefills: int
    num_decodes: int
    has_initial_state: torch.Tensor | None
    non_spec_query_start_loc: torch.Tensor | None
    non_spec_state_indices_tensor: torch.Tensor | None
    num_actual_tokens: int
    tp_size: int
    reorder_input: bool
    num_spec_decodes: int = 0
    non_spec_token_indx: torch.Tensor | None = None
    spec_query_start_loc: torch.Tensor | None = None
    spec_token_indx: torch.Tensor | None = None
    spec_state_indices_tensor: torch.Tensor | None = None
    num_accepted_tokens: torch.Tensor | None = None

    @property
    def k_heads(self) -> int:
        """Return the key heads of this rank."""
        return self.num_k_heads // self.tp_size

    @property
    def v_heads(self) -> int:
        """Return the value heads of this rank."""
        return self.num_v_heads // self.tp_size

    @property
    def channels(self) -> int:
        """Return how many channels are convolved: q, k and v."""
        return 2 * self.k_heads * self.head_k_dim + self.v_heads * self.head_v_dim

    @property
    def sequences(self) -> int:
        """Return how many sequences are not decoded speculatively."""
        return self.num_prefills + self.num_decodes

    @property
    def plain_tokens(self) -> int:
        """Return how many tokens those sequences have."""
        if not self.sequences:
            return 0
        return self.num_actual_tokens if self.non_spec_token_indx is None else self.non_spec_token_indx.size(0)

    @property
    def spec_tokens(self) -> int:
        """Return how many tokens are decoded speculatively."""
        return self.spec_token_indx.size(0) if self.num_spec_decodes and self.spec_token_indx is not None else 0
