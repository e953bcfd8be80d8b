"""Names, signatures and defaults of the operations and functions beside the switchboard, as in the model.

Further parameters of our own come after the model's, and have defaults.
"""

from __future__ import annotations

import inspect
from functools import reduce
from typing import Any

import pytest

import backline

# A line: names, then the parameters that all of them have.
MODEL = """
    use_deterministic_algorithms (mode, *, warn_only=False)
    are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled get_deterministic_debug_mode ()
    set_deterministic_debug_mode (debug_mode)
    set_float32_matmul_precision (precision)
    get_float32_matmul_precision get_num_threads get_num_interop_threads ()
    set_num_threads set_num_interop_threads (n)
    set_flush_denormal (mode)
    __config__.show __config__.parallel_info __config__._cxx_flags ()
    matmul linalg.matmul (input, other)
    mm bmm (input, mat2)
    mv (input, vec)
    dot (input, tensor)
    outer (input, vec2)
    addmm (input, mat1, mat2, *, beta=1, alpha=1)
    baddbmm (input, batch1, batch2, *, beta=1, alpha=1)
    tensordot (a, b, dims=2)
    einsum (equation, /, *operands)
    sparse.to_sparse_semi_structured (original_tensor)
    nn.attention.sdpa_kernel (backends, set_priority=False)
    nn.functional.linear (input, weight, bias=None)
    nn.functional.conv1d nn.functional.conv2d nn.functional.conv3d (input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1)
    nn.functional.conv_transpose1d nn.functional.conv_transpose2d nn.functional.conv_transpose3d (input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1)
    nn.functional.batch_norm (input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-05)
    nn.functional.scaled_dot_product_attention (query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False)
    nn.functional.scaled_mm (mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b, swizzle_a=None, swizzle_b=None, bias=None, output_dtype='bfloat16', contraction_dim=(), use_fast_accum=False)
    nn.functional.grouped_mm (mat_a, mat_b, *, offs=None, bias=None, out_dtype=None)
    nn.functional.multi_head_attention_forward (query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v, add_zero_attn, dropout_p, out_proj_weight, out_proj_bias, training=True, key_padding_mask=None, need_weights=True, attn_mask=None, use_separate_proj_weight=False, q_proj_weight=None, k_proj_weight=None, v_proj_weight=None, static_k=None, static_v=None, average_attn_weights=True, is_causal=False)
    nn.lstm nn.gru nn.rnn_tanh nn.rnn_relu (input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    quantized.linear_prepack (weight, bias=None)
    quantized.linear quantized.conv2d (x, packed, scale, zero_point)
    quantized.linear_dynamic (x, packed)
    quantized.conv2d_prepack (weight, bias=None, stride=1, padding=0, dilation=1, groups=1)
    linalg.inv linalg.det linalg.slogdet linalg.eig linalg.eigvals (A)
    linalg.inv_ex (A, *, check_errors=False)
    linalg.cholesky (A, *, upper=False)
    linalg.cholesky_ex (A, *, upper=False, check_errors=False)
    cholesky_solve (B, L, upper=False)
    cholesky_inverse (L, upper=False)
    linalg.lu_factor linalg.lu (A, *, pivot=True)
    linalg.lu_factor_ex (A, *, pivot=True, check_errors=False)
    linalg.lu_solve (LU, pivots, B, *, left=True, adjoint=False)
    linalg.qr (A, mode='reduced')
    linalg.eigh linalg.eigvalsh (A, UPLO='L')
    linalg.svd (A, full_matrices=True, *, driver=None)
    linalg.svdvals (A, *, driver=None)
    linalg.solve (A, B, *, left=True)
    linalg.solve_ex (A, B, *, left=True, check_errors=False)
    linalg.solve_triangular (A, B, *, upper, left=True, unitriangular=False)
    linalg.lstsq (A, B, rcond=None, *, driver=None)
    linalg.pinv linalg.matrix_rank (A, *, atol=None, rtol=None, hermitian=False)
    linalg.norm (A, ord=None, dim=None, keepdim=False)
    linalg.vector_norm (x, ord=2, dim=None, keepdim=False)
    linalg.matrix_norm (A, ord='fro', dim=(-2, -1), keepdim=False)
    linalg.cond (A, p=None)
    linalg.matrix_power (A, n)
    linalg.multi_dot (tensors)
    fft.fft fft.ifft fft.rfft fft.irfft fft.hfft fft.ihfft (input, n=None, dim=-1, norm=None)
    fft.fft2 fft.ifft2 fft.rfft2 fft.irfft2 fft.hfft2 fft.ihfft2 (input, s=None, dim=(-2, -1), norm=None)
    fft.fftn fft.ifftn fft.rfftn fft.irfftn fft.hfftn fft.ihfftn (input, s=None, dim=None, norm=None)
    fft.fftfreq fft.rfftfreq (n, d=1.0)
    fft.fftshift fft.ifftshift (input, dim=None)
"""
ROWS = [(name, f"({rest}") for line in MODEL.strip().splitlines() for names, _, rest in [line.strip().partition(" (")] for name in names.split()]


def parameters(thing: Any) -> list[inspect.Parameter]:
    return [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(thing).parameters.values()]


@pytest.mark.parametrize(("name", "wanted"), ROWS)
def test_an_operation(name: str, wanted: str) -> None:
    thing = reduce(getattr, name.split("."), backline)
    model = parameters(eval(f"lambda {wanted[1:-1]}: None"))
    ours = parameters(thing)
    by_position = [p for p in model if p.kind is not p.KEYWORD_ONLY]
    assert ours[: len(by_position)] == by_position
    for p in model[len(by_position) :]:
        assert p in ours, p
    further = [p for p in ours if p.name not in {each.name for each in model}]
    assert all(p.default is not p.empty for p in further), further
    assert thing.__doc__ and thing.__name__ == name.rpartition(".")[2]


def test_names_that_are_no_functions() -> None:
    import numpy as np

    assert issubclass(backline.linalg.LinAlgError, np.linalg.LinAlgError)
    x = backline.quantized.QArray(np.zeros(3, np.int8), 0.5, 1)
    assert [p.name for p in parameters(backline.quantized.QArray)][:4] == ["int_repr", "scale", "zero_point", "axis"] and x.axis is None
    assert callable(backline.quantized.quantize) and callable(backline.quantized.dequantize)
    assert backline.utils.deterministic.fill_uninitialized_memory is True
