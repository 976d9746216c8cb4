"""What each version declares and checks."""

from __future__ import annotations

from dataclasses import dataclass

_HEAD = (
    "gdn_attention(Tensor! core_attn_out, Tensor! z, Tensor projected_states_qkvz, Tensor projected_states_ba, "
    "int num_k_heads, int num_v_heads, int head_k_dim, int head_v_dim, Tensor! conv_state, Tensor! ssm_state, "
    "Tensor conv_weights, Tensor? conv_bias, str activation, Tensor A_log, Tensor dt_bias, "
)
_ONE_GROUP = (
    _HEAD + "int num_prefills, int num_decodes, Tensor? has_initial_state, Tensor non_spec_query_start_loc, "
    "Tensor non_spec_state_indices_tensor, int num_actual_tokens, int tp_size, bool reorder_input) -> ()"
)
_TWO_GROUPS = (
    _HEAD + "int num_prefills, int num_decodes, int num_spec_decodes, Tensor? has_initial_state, "
    "Tensor? non_spec_query_start_loc, Tensor? non_spec_token_indx, Tensor? non_spec_state_indices_tensor, "
    "Tensor? spec_query_start_loc, Tensor? spec_token_indx, Tensor? spec_state_indices_tensor, "
    "Tensor? num_accepted_tokens, int num_actual_tokens, int tp_size, bool reorder_input) -> ()"
)


@dataclass(frozen=True)
class Rules:
    """A version: its schema, and which of the later checks and freedoms it has."""

    schema: str
    checks_indices: bool
    rows_may_exceed: bool
    mixes_groups: bool


RULES = {
    "0.1.7": Rules(_ONE_GROUP, checks_indices=False, rows_may_exceed=False, mixes_groups=False),
    "0.1.9": Rules(_TWO_GROUPS, checks_indices=True, rows_may_exceed=True, mixes_groups=True),
    "0.1.13.1": Rules(_TWO_GROUPS, checks_indices=True, rows_may_exceed=True, mixes_groups=False),
}
