"""A Gated DeltaNet layer for XPU in the shape of a vendor's downstream file, with that file's dtype defect left in.

Written here to be read, rewritten and run: same buffers, same three forward methods, same kernels and conditions as
Qwen3NextGatedDeltaNet of the 0.14.0 downstream tree (https://github.com/intel/llm-scaler, tag vllm-0.14.0-b8.3.1,
vllm/patches/vllm_for_multi_arc.patch), whose text is not here. Where that file has only a fused call, this one has the
generic operator beside it. It needs torch alone; what it takes from vLLM there, it has in small below.
"""

# The shape is the subject: its methods are as long and as branched as the file they stand for.
# ruff: noqa: C901, PLR0912, PLR0915

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

try:
    from custom_esimd_kernels_vllm import (
        esimd_gdn_conv_fused,
        esimd_gemm_fp8_pert,
        esimd_gemv_fp8_pert_fused2,
        esimd_norm_gemv_fp8_pert,
        esimd_rms_norm_gated,
    )

    HAS_ESIMD = True
except ImportError:
    HAS_ESIMD = False

SMALL = 64


@dataclass
class Metadata:
    """What the scheduler says about one step: sequences, their slots, and where they begin."""

    num_prefills: int
    num_decodes: int
    num_actual_tokens: int
    has_initial_state: torch.Tensor | None
    non_spec_query_start_loc: torch.Tensor
    non_spec_state_indices_tensor: torch.Tensor


class ForwardContext:
    """What a step hands to every layer."""

    attn_metadata: dict[str, Metadata] | None = None
    virtual_engine = 0


_CONTEXT = ForwardContext()


def get_forward_context() -> ForwardContext:
    """Return the context of the step that runs."""
    return _CONTEXT


def tensor_model_parallel_all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor: there is one rank here."""
    return tensor


@dataclass
class Config:
    """The sizes of a layer."""

    hidden_size: int = 64
    num_k_heads: int = 2
    num_v_heads: int = 4
    head_k_dim: int = 32
    head_v_dim: int = 32
    conv_kernel: int = 4
    rms_norm_eps: float = 1e-6


class Fp8Linear(nn.Module):
    """A projection quantised online: FP8 weight, one scale, activations in the model's dtype."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        weight = torch.randn(outputs, inputs, dtype=torch.float32) * inputs**-0.5
        scale = weight.abs().max() / torch.finfo(torch.float8_e4m3fn).max
        self.weight = nn.Parameter((weight / scale).to(torch.float8_e4m3fn), requires_grad=False)
        self.weight_scale = nn.Parameter(scale.reshape(1), requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        weight = self.weight.float() * self.weight_scale
        return (x.float() @ weight.t()).to(x.dtype), None


class RMSNormGated(nn.Module):
    """RMS norm whose result is gated by SiLU of a second input; its weight is float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(size, dtype=torch.float32), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        return (normed * self.weight * nn.functional.silu(z.float())).to(x.dtype)


class Qwen3NextGatedDeltaNet(nn.Module):
    """The layer. Parameters take torch's default dtype, which the loader sets to the model's."""

    def __init__(
        self,
        config: Config,
        prefix: str = "layer",
        tp_size: int = 1,
        quantized: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.tp_size = tp_size
        self.hidden_size = config.hidden_size
        self.num_k_heads = config.num_k_heads
        self.num_v_heads = config.num_v_heads
        self.head_k_dim = config.head_k_dim
        self.head_v_dim = config.head_v_dim
        self.activation = "silu"
        self.key_dim = self.head_k_dim * self.num_k_heads
        self.value_dim = self.head_v_dim * self.num_v_heads
        self.conv_dim = self.key_dim * 2 + self.value_dim
        self.projection_size_qkvz = self.key_dim * 2 + self.value_dim * 2
        self.projection_size_ba = self.num_v_heads * 2

        self.in_proj_qkvz = Fp8Linear(self.hidden_size, self.projection_size_qkvz // tp_size)
        self.in_proj_ba = Fp8Linear(self.hidden_size, self.projection_size_ba // tp_size)
        self.out_proj = Fp8Linear(self.value_dim // tp_size, self.hidden_size)
        self.conv1d = nn.Conv1d(
            self.conv_dim // tp_size, self.conv_dim // tp_size, config.conv_kernel, groups=self.conv_dim // tp_size
        )
        self.conv1d.bias = None
        self.dt_bias = nn.Parameter(torch.ones(self.num_v_heads // tp_size), requires_grad=False)
        self.A_log = nn.Parameter(torch.empty(self.num_v_heads // tp_size).uniform_(0, 1), requires_grad=False)
        self.norm = RMSNormGated(self.head_v_dim, config.rms_norm_eps)
        self.kv_cache: list[tuple[torch.Tensor, torch.Tensor]] = []

        self.conv_bias_zeros = torch.zeros(self.conv_dim // self.tp_size, dtype=torch.float16, device=device)

        # One token: buffers made once, so that a step allocates nothing.
        self._decode_qkvz_buf = torch.empty(
            (1, self.projection_size_qkvz // self.tp_size),
            dtype=torch.float16,
            device=device,
        )
        self._decode_ba_buf = torch.empty(
            (1, self.projection_size_ba // self.tp_size),
            dtype=torch.float16,
            device=device,
        )
        self._decode_attn_out_buf = torch.zeros(
            (1, self.num_v_heads // self.tp_size, self.head_v_dim),
            dtype=torch.float16,
            device=device,
        )
        self._decode_z_buf = torch.empty(
            (1, self.num_v_heads // self.tp_size, self.head_v_dim),
            dtype=torch.float16,
            device=device,
        )
        self._decode_outproj_buf = torch.empty((1, self.hidden_size), dtype=torch.float16, device=device)
        self._norm_weight_fp16: torch.Tensor | None = None
        self._esimd = HAS_ESIMD and quantized

        # More tokens, up to a limit: buffers of their own.
        _mb = int(os.environ.get("MAX_DECODE_BSZ", "64"))
        self._max_bsz = _mb
        self._m_qkvz = torch.empty(
            (_mb, self.projection_size_qkvz // self.tp_size),
            dtype=torch.float16,
            device=device,
        )
        self._m_ba = torch.empty((_mb, self.projection_size_ba // self.tp_size), dtype=torch.float16, device=device)
        self._m_attn_out = torch.empty(
            (_mb, self.num_v_heads // self.tp_size, self.head_v_dim),
            dtype=torch.float16,
            device=device,
        )
        self._m_z = torch.empty(
            (_mb, self.num_v_heads // self.tp_size, self.head_v_dim),
            dtype=torch.float16,
            device=device,
        )
        self._m_outproj = torch.empty((_mb, self.hidden_size), dtype=torch.float16, device=device)

        self._cached_conv_weights: torch.Tensor | None = None
        self._cached_nk_tp = self.num_k_heads // self.tp_size
        self._cached_nv_tp = self.num_v_heads // self.tp_size
        self._cached_attn_scale = float(self.head_k_dim**-0.5)
        self._decode_attn_out_view = self._decode_attn_out_buf.view(self._cached_nv_tp, self.head_v_dim)
        self._decode_z_view = self._decode_z_buf.view(self._cached_nv_tp, self.head_v_dim)

    def forward_xpu(self, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        """Input projection, attention, output projection; `output` has the shape of `hidden_states`."""
        num_tokens = hidden_states.size(0)
        is_decode = num_tokens == 1

        # Part 1: input projection
        if is_decode:
            projected_states_qkvz = self._decode_qkvz_buf
            projected_states_ba = self._decode_ba_buf
            if self._esimd:
                esimd_gemv_fp8_pert_fused2(
                    hidden_states,
                    self.in_proj_qkvz.weight,
                    self.in_proj_qkvz.weight_scale,
                    projected_states_qkvz,
                    self.in_proj_ba.weight,
                    self.in_proj_ba.weight_scale,
                    projected_states_ba,
                )
            else:
                projected_states_qkvz.copy_(self.in_proj_qkvz(hidden_states)[0])
                projected_states_ba.copy_(self.in_proj_ba(hidden_states)[0])
        elif num_tokens <= SMALL:
            if num_tokens <= self._max_bsz:
                projected_states_qkvz = self._m_qkvz[:num_tokens]
                projected_states_ba = self._m_ba[:num_tokens]
            else:
                projected_states_qkvz = torch.empty(
                    (num_tokens, self.in_proj_qkvz.weight.shape[0]),
                    dtype=torch.float16,
                    device=hidden_states.device,
                )
                projected_states_ba = torch.empty(
                    (num_tokens, self.in_proj_ba.weight.shape[0]), dtype=torch.float16, device=hidden_states.device
                )
            if self._esimd:
                esimd_gemm_fp8_pert(
                    hidden_states,
                    self.in_proj_qkvz.weight,
                    self.in_proj_qkvz.weight_scale,
                    projected_states_qkvz,
                )
                esimd_gemm_fp8_pert(
                    hidden_states, self.in_proj_ba.weight, self.in_proj_ba.weight_scale, projected_states_ba
                )
            else:
                projected_states_qkvz.copy_(self.in_proj_qkvz(hidden_states)[0])
                projected_states_ba.copy_(self.in_proj_ba(hidden_states)[0])
        else:
            projected_states_qkvz, _ = self.in_proj_qkvz(hidden_states)
            projected_states_ba, _ = self.in_proj_ba(hidden_states)

        # Part 2: attention
        forward_context = get_forward_context()
        attn_metadata: Any = forward_context.attn_metadata
        if is_decode:
            core_attn_out = self._decode_attn_out_buf
            z = self._decode_z_buf
        elif num_tokens <= self._max_bsz:
            core_attn_out = self._m_attn_out[:num_tokens]
            z = self._m_z[:num_tokens]
        else:
            core_attn_out = torch.empty(
                (num_tokens, self.num_v_heads // self.tp_size, self.head_v_dim),
                dtype=hidden_states.dtype,
                device=hidden_states.device,
            )
            z = torch.empty_like(core_attn_out)
        if attn_metadata is None:
            output[:num_tokens].zero_()
            return
        attn_metadata = attn_metadata[self.prefix]
        self_kv_cache = self.kv_cache[forward_context.virtual_engine]
        conv_state = self_kv_cache[0]
        ssm_state = self_kv_cache[1]
        if self._cached_conv_weights is None:
            self._cached_conv_weights = self.conv1d.weight.view(self.conv1d.weight.size(0), self.conv1d.weight.size(2))
        conv_weights = self._cached_conv_weights

        _use_esimd_gdn = self._esimd and (
            is_decode
            or (attn_metadata.num_prefills == 0 and attn_metadata.num_decodes > 0 and attn_metadata.num_decodes <= 128)
        )
        if _use_esimd_gdn:
            N_dec = attn_metadata.num_decodes
            state_idx = attn_metadata.non_spec_state_indices_tensor[:N_dec]
            esimd_gdn_conv_fused(
                projected_states_qkvz,
                conv_state,
                conv_weights,
                self.conv_bias_zeros,
                state_idx,
                self.A_log,
                self.dt_bias,
                projected_states_ba,
                ssm_state,
                state_idx,
                core_attn_out,
                z,
                N_dec,
                self._cached_nk_tp,
                self._cached_nv_tp,
                self.head_k_dim,
                self.head_v_dim,
                self._cached_attn_scale,
            )
        else:
            torch.ops._xpu_C.gdn_attention(
                core_attn_out,
                z,
                projected_states_qkvz,
                projected_states_ba,
                self.num_k_heads,
                self.num_v_heads,
                self.head_k_dim,
                self.head_v_dim,
                conv_state=conv_state,
                ssm_state=ssm_state,
                conv_weights=conv_weights,
                conv_bias=self.conv1d.bias,
                activation=self.activation,
                A_log=self.A_log.float(),
                dt_bias=self.dt_bias,
                num_prefills=attn_metadata.num_prefills,
                num_decodes=attn_metadata.num_decodes,
                has_initial_state=attn_metadata.has_initial_state,
                non_spec_query_start_loc=attn_metadata.non_spec_query_start_loc,
                non_spec_state_indices_tensor=attn_metadata.non_spec_state_indices_tensor,
                num_actual_tokens=attn_metadata.num_actual_tokens,
                tp_size=self.tp_size,
                reorder_input=False,
            )

        # Part 3: output projection
        if is_decode and self._esimd:
            if self._norm_weight_fp16 is None:
                self._norm_weight_fp16 = self.norm.weight.data.half().clone().contiguous()
            esimd_norm_gemv_fp8_pert(
                self._decode_attn_out_view,
                self._decode_z_view,
                self._norm_weight_fp16,
                self.out_proj.weight,
                self.out_proj.weight_scale,
                self._decode_outproj_buf,
                self._cached_nv_tp,
                self.head_v_dim,
                self.norm.eps,
            )
            output[:1] = tensor_model_parallel_all_reduce(self._decode_outproj_buf)
        elif num_tokens <= SMALL and self._esimd:
            if self._norm_weight_fp16 is None:
                self._norm_weight_fp16 = self.norm.weight.data.half().clone().contiguous()
            x_flat = core_attn_out.reshape(-1, core_attn_out.shape[-1])
            z_flat = z.reshape(-1, z.shape[-1])
            normed = torch.empty_like(x_flat)
            esimd_rms_norm_gated(x_flat, z_flat, self._norm_weight_fp16, normed, self.norm.eps)
            core_attn_out = normed.reshape(num_tokens, -1)
            if num_tokens <= self._max_bsz:
                out_buf = self._m_outproj[:num_tokens]
            else:
                out_buf = torch.empty(num_tokens, self.hidden_size, dtype=torch.float16, device=hidden_states.device)
            esimd_gemm_fp8_pert(core_attn_out, self.out_proj.weight, self.out_proj.weight_scale, out_buf)
            output[:num_tokens] = tensor_model_parallel_all_reduce(out_buf)
        else:
            core_attn_out = self.norm(core_attn_out, z)
            output[:num_tokens] = tensor_model_parallel_all_reduce(self.out_proj(core_attn_out.flatten(1))[0])

    def forward_xpu_with_precomputed_proj(
        self,
        projected_states_qkvz: torch.Tensor,
        projected_states_ba: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """Decode one token whose input projection the caller has done."""
        forward_context = get_forward_context()
        attn_metadata: Any = forward_context.attn_metadata
        core_attn_out = self._decode_attn_out_buf
        z = self._decode_z_buf
        if attn_metadata is None:
            output[:1].zero_()
            return
        attn_metadata = attn_metadata[self.prefix]
        self_kv_cache = self.kv_cache[forward_context.virtual_engine]
        conv_state = self_kv_cache[0]
        ssm_state = self_kv_cache[1]
        if self._cached_conv_weights is None:
            self._cached_conv_weights = self.conv1d.weight.view(self.conv1d.weight.size(0), self.conv1d.weight.size(2))
        if self._esimd:
            N_dec = attn_metadata.num_decodes
            state_idx = attn_metadata.non_spec_state_indices_tensor[:N_dec]
            esimd_gdn_conv_fused(
                projected_states_qkvz,
                conv_state,
                self._cached_conv_weights,
                self.conv_bias_zeros,
                state_idx,
                self.A_log,
                self.dt_bias,
                projected_states_ba,
                ssm_state,
                state_idx,
                core_attn_out,
                z,
                N_dec,
                self._cached_nk_tp,
                self._cached_nv_tp,
                self.head_k_dim,
                self.head_v_dim,
                self._cached_attn_scale,
            )
        else:
            torch.ops._xpu_C.gdn_attention(
                core_attn_out,
                z,
                projected_states_qkvz,
                projected_states_ba,
                self.num_k_heads,
                self.num_v_heads,
                self.head_k_dim,
                self.head_v_dim,
                conv_state=conv_state,
                ssm_state=ssm_state,
                conv_weights=self._cached_conv_weights,
                conv_bias=self.conv1d.bias,
                activation=self.activation,
                A_log=self.A_log.float(),
                dt_bias=self.dt_bias,
                num_prefills=attn_metadata.num_prefills,
                num_decodes=attn_metadata.num_decodes,
                has_initial_state=attn_metadata.has_initial_state,
                non_spec_query_start_loc=attn_metadata.non_spec_query_start_loc,
                non_spec_state_indices_tensor=attn_metadata.non_spec_state_indices_tensor,
                num_actual_tokens=attn_metadata.num_actual_tokens,
                tp_size=self.tp_size,
                reorder_input=False,
            )
        if self._esimd:
            if self._norm_weight_fp16 is None:
                self._norm_weight_fp16 = self.norm.weight.data.half().clone().contiguous()
            esimd_norm_gemv_fp8_pert(
                core_attn_out.view(self._cached_nv_tp, self.head_v_dim),
                z.view(self._cached_nv_tp, self.head_v_dim),
                self._norm_weight_fp16,
                self.out_proj.weight,
                self.out_proj.weight_scale,
                self._decode_outproj_buf,
                self._cached_nv_tp,
                self.head_v_dim,
                self.norm.eps,
            )
            output[:1] = tensor_model_parallel_all_reduce(self._decode_outproj_buf)
        else:
            core_attn_out = self.norm(core_attn_out, z)
            output[:1] = tensor_model_parallel_all_reduce(self.out_proj(core_attn_out.flatten(1))[0])

    def forward_xpu_batched_precomputed_proj(
        self,
        projected_states_qkvz: torch.Tensor,
        projected_states_ba: torch.Tensor,
        output: torch.Tensor,
    ) -> None:
        """Decode several sequences whose input projection the caller has done."""
        num_tokens = projected_states_qkvz.size(0)
        forward_context = get_forward_context()
        attn_metadata: Any = forward_context.attn_metadata
        if attn_metadata is None:
            output[:num_tokens].zero_()
            return
        if num_tokens <= self._max_bsz:
            core_attn_out = self._m_attn_out[:num_tokens]
            z = self._m_z[:num_tokens]
        else:
            core_attn_out = torch.empty(
                (num_tokens, self.num_v_heads // self.tp_size, self.head_v_dim),
                dtype=torch.float16,
                device=output.device,
            )
            z = torch.empty_like(core_attn_out)
        attn_metadata = attn_metadata[self.prefix]
        self_kv_cache = self.kv_cache[forward_context.virtual_engine]
        conv_state = self_kv_cache[0]
        ssm_state = self_kv_cache[1]
        if self._cached_conv_weights is None:
            self._cached_conv_weights = self.conv1d.weight.view(self.conv1d.weight.size(0), self.conv1d.weight.size(2))
        if self._esimd:
            N_dec = attn_metadata.num_decodes
            state_idx = attn_metadata.non_spec_state_indices_tensor[:N_dec]
            esimd_gdn_conv_fused(
                projected_states_qkvz,
                conv_state,
                self._cached_conv_weights,
                self.conv_bias_zeros,
                state_idx,
                self.A_log,
                self.dt_bias,
                projected_states_ba,
                ssm_state,
                state_idx,
                core_attn_out,
                z,
                N_dec,
                self._cached_nk_tp,
                self._cached_nv_tp,
                self.head_k_dim,
                self.head_v_dim,
                self._cached_attn_scale,
            )
        else:
            torch.ops._xpu_C.gdn_attention(
                core_attn_out,
                z,
                projected_states_qkvz,
                projected_states_ba,
                self.num_k_heads,
                self.num_v_heads,
                self.head_k_dim,
                self.head_v_dim,
                conv_state=conv_state,
                ssm_state=ssm_state,
                conv_weights=self._cached_conv_weights,
                conv_bias=self.conv1d.bias,
                activation=self.activation,
                A_log=self.A_log.float(),
                dt_bias=self.dt_bias,
                num_prefills=attn_metadata.num_prefills,
                num_decodes=attn_metadata.num_decodes,
                has_initial_state=attn_metadata.has_initial_state,
                non_spec_query_start_loc=attn_metadata.non_spec_query_start_loc,
                non_spec_state_indices_tensor=attn_metadata.non_spec_state_indices_tensor,
                num_actual_tokens=attn_metadata.num_actual_tokens,
                tp_size=self.tp_size,
                reorder_input=False,
            )
        if self._esimd:
            if self._norm_weight_fp16 is None:
                self._norm_weight_fp16 = self.norm.weight.data.half().clone().contiguous()
            x_flat = core_attn_out.reshape(-1, core_attn_out.shape[-1])
            z_flat = z.reshape(-1, z.shape[-1])
            normed = torch.empty_like(x_flat)
            esimd_rms_norm_gated(x_flat, z_flat, self._norm_weight_fp16, normed, self.norm.eps)
            core_attn_out = normed.reshape(num_tokens, -1)
            if num_tokens <= self._max_bsz:
                out_buf = self._m_outproj[:num_tokens]
            else:
                out_buf = torch.empty(num_tokens, self.hidden_size, dtype=torch.float16, device=output.device)
            esimd_gemm_fp8_pert(core_attn_out, self.out_proj.weight, self.out_proj.weight_scale, out_buf)
            output[:num_tokens] = tensor_model_parallel_all_reduce(out_buf)
        else:
            core_attn_out = self.norm(core_attn_out, z)
            output[:num_tokens] = tensor_model_parallel_all_reduce(self.out_proj(core_attn_out.flatten(1))[0])
