"""One valid call of every public operation, by parameter names: what tests of wrong arguments and of byte order begin with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

import backline
from backline import fft, linalg, nn, quantized, sparse
from backline.nn import functional, grad
from backline.problems.neural_problem import ELEMENTARY

Arguments = dict[str, Any]
MODULES: dict[str, ModuleType] = {
    "": backline, "linalg.": linalg, "fft.": fft, "nn.": nn, "functional.": functional, "grad.": grad, "quantized.": quantized, "sparse.": sparse,
}  # fmt: skip

# Public callables that compute nothing: settings, scopes, reports, and classes that results are made of.
NO_OPERATIONS = {
    *("are_deterministic_algorithms_enabled", "explain", "get_deterministic_debug_mode", "get_float32_matmul_precision"),
    *("get_num_interop_threads", "get_num_threads", "is_deterministic_algorithms_warn_only_enabled", "num_threads"),
    *("set_deterministic_debug_mode", "set_float32_matmul_precision", "set_flush_denormal", "set_num_interop_threads"),
    *("set_num_threads", "use", "use_deterministic_algorithms", "linalg.LinAlgError"),
    *("apply_to", "carry", "check_precision", "doctor", "read_from", "shadow", "verify_determinism", "worker_initializer"),
    *("functional.AttentionLSE", "functional.MultiHeadAttention", "functional.ScalingType", "grad.AttentionGrads", "grad.NormGrads"),
    *("grad.RnnGrads", "grad.StateGrads"),
    *("quantized.HistogramObserver", "quantized.MinMaxObserver", "quantized.PackedConv2d", "quantized.PackedLinear"),
    *("sparse.CompressedMatrix", "sparse.ProductWay", "sparse.search"),
}


def numbers(*shape: int, dtype: Any = np.float64) -> Any:
    """Numbers between 0.5 and 1.5, the same in every call."""
    return (np.random.default_rng(0).random(shape) + 0.5).astype(dtype)


def positive_definite(n: int = 3) -> Any:
    return numbers(n, n) @ numbers(n, n).T + 3 * np.eye(n)


def _qarray(*shape: int, dtype: str = "uint8") -> Any:
    return quantized.quantize(numbers(*shape, dtype=np.float32), 0.01, 0, dtype)


def _linalg() -> dict[str, Arguments]:
    a, spd = numbers(3, 3) + 3 * np.eye(3), positive_definite()
    lu, pivots = linalg.lu_factor(a)
    b = numbers(3, 2)
    square = {
        key: {"A": a} for key in ("inv", "inv_ex", "eig", "eigvals", "cond", "det", "lu", "lu_factor", "lu_factor_ex", "slogdet")
    }
    return {
        **square,
        **{key: {"A": spd} for key in ("cholesky", "cholesky_ex", "eigh", "eigvalsh")},
        **{key: {"A": numbers(4, 3)} for key in ("qr", "svd", "svdvals", "pinv", "matrix_rank", "matrix_norm", "norm")},
        **{key: {"A": a, "B": b} for key in ("solve", "solve_ex")},
        "solve_triangular": {"A": a, "B": b, "upper": True}, "lstsq": {"A": numbers(4, 3), "B": numbers(4, 2)},
        "lu_solve": {"LU": lu, "pivots": pivots, "B": b}, "matmul": {"input": a, "other": b},
        **{key: {"A": spd} for key in ("diagonal", "ldl_factor", "ldl_factor_ex", "matrix_exp")},
        **_solving(), "cross": {"input": a, "other": a[:1]}, "vander": {"x": b[:, 0]}, "vecdot": {"x": a, "y": a},
        "matrix_power": {"A": a, "n": 3}, "multi_dot": {"tensors": [a, a, b]}, "vector_norm": {"x": numbers(4, 3)},
    }  # fmt: skip


def _solving() -> dict[str, Arguments]:
    factor, pivots = linalg.ldl_factor(positive_definite())
    a = np.eye(6) + numbers(6, 6)
    return {
        "ldl_solve": {"LD": factor, "pivots": pivots, "B": numbers(3, 2)}, "householder_product": {"A": numbers(4, 3), "tau": numbers(3)},
        "tensorinv": {"A": a.reshape(2, 3, 6)}, "tensorsolve": {"A": a.reshape(2, 3, 6), "B": numbers(2, 3), "dims": (2,)},
    }  # fmt: skip


def _fft() -> dict[str, Arguments]:
    x = numbers(4, 6)
    return {
        **{name: {"input": x} for name in fft.__all__},
        **{key: {"n": 4} for key in ("fftfreq", "rfftfreq")},
    }


def _layers() -> dict[str, Arguments]:
    calls: dict[str, Arguments] = {}
    x = numbers(2, 3, 4)
    for name in ("relu", "gelu", "silu", "tanh", "sigmoid"):
        calls[name] = {"input": x}
    for name in ("softmax", "log_softmax"):
        calls[name] = {"input": x, "dim": 1}
    calls["dropout"] = {"input": x, "seed": 0}
    for rank in (1, 2, 3):
        images, kernel = numbers(2, 4, *(5,) * rank), numbers(6, 2, *(3,) * rank)
        calls[f"conv{rank}d"] = {"input": images, "weight": kernel, "bias": numbers(6), "groups": 2}
        calls[f"prepack_conv{rank}d"] = {"weight": kernel, "bias": numbers(6), "groups": 2}
        back = numbers(4, 3, *(3,) * rank)
        calls[f"conv_transpose{rank}d"] = {"input": images, "weight": back, "bias": numbers(6), "groups": 2}
        calls[f"prepack_conv_transpose{rank}d"] = {"weight": back, "bias": numbers(6), "groups": 2}
        for pool in ("max_pool", "avg_pool"):
            calls[f"{pool}{rank}d"] = {"input": images, "kernel_size": 2}
        calls[f"adaptive_avg_pool{rank}d"] = {"input": images, "output_size": 3}
    calls["ctc_loss"] = {
        "log_probs": np.log(numbers(4, 2, 3) / 5), "targets": np.array([[1, 2], [2, 1]]), "input_lengths": [4, 3], "target_lengths": [2, 1],
    }  # fmt: skip
    weight = numbers(5, 4)
    calls["linear"] = {"input": x, "weight": weight, "bias": numbers(5)}
    calls["prepack_linear"] = {"weight": weight, "bias": numbers(5)}
    calls["bilinear"] = {"input1": x, "input2": numbers(2, 3, 2), "weight": numbers(5, 4, 2), "bias": numbers(5)}
    calls["layer_norm"] = {"input": x, "normalized_shape": (4,), "weight": numbers(4), "bias": numbers(4)}
    calls["rms_norm"] = {"input": x, "normalized_shape": (4,), "weight": numbers(4)}
    calls["batch_norm"] = {
        "input": x,
        "running_mean": numbers(3),
        "running_var": numbers(3),
        "weight": numbers(3),
        "bias": numbers(3),
    }
    one = np.ones(1, np.float32)
    calls["scaled_mm"] = {
        "mat_a": numbers(3, 4, dtype=ml_dtypes.float8_e4m3fn), "mat_b": numbers(4, 5, dtype=ml_dtypes.float8_e5m2),
        "scale_a": one, "scale_b": one, "scale_recipe_a": "TensorWise", "scale_recipe_b": "TensorWise",
    }  # fmt: skip
    calls["grouped_mm"] = {"mat_a": numbers(3, 4), "mat_b": numbers(2, 4, 5), "offs": np.array([1, 3], np.int32)}
    calls["scaled_dot_product_attention"] = {"query": x, "key": x, "value": x, "attn_mask": numbers(3, 3)}
    calls["varlen_attn"] = {"query": x, "key": x, "value": x, "cu_seq_q": np.array([0, 2]), "cu_seq_k": np.array([0, 2])}
    sequence = numbers(3, 2, 4)
    heads = {
        "query": sequence,
        "key": sequence,
        "value": sequence,
        "num_heads": 2,
        "in_proj_weight": numbers(12, 4),
        "in_proj_bias": numbers(12),
    }
    out = {"out_proj_weight": numbers(4, 4), "out_proj_bias": numbers(4)}
    calls["multi_head_attention"] = {**heads, **out, "seed": 0}
    calls["multi_head_attention_forward"] = {
        **heads, **out, "embed_dim_to_check": 4, "bias_k": None, "bias_v": None, "add_zero_attn": False, "dropout_p": 0.0, "seed": 0,
    }  # fmt: skip
    return calls


def _recurrent() -> dict[str, tuple[Arguments, Arguments]]:
    """Arguments of each network, and those of its gradients."""
    calls = {}
    for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        params = (numbers(gates * 2, 3), numbers(gates * 2, 2), numbers(gates * 2), numbers(gates * 2))
        state = numbers(1, 4, 2)
        flags = {
            "has_biases": True,
            "num_layers": 1,
            "dropout": 0.0,
            "train": False,
            "bidirectional": False,
            "batch_first": False,
        }
        given = {"input": numbers(5, 4, 3), "hx": (state, state) if name == "lstm" else state, "params": params, **flags}
        backward = {**given, "grad_output": numbers(5, 4, 2), "grad_h_n": state}
        calls[name] = given, backward | ({"grad_c_n": state} if name == "lstm" else {})
    return calls


def _gradients() -> dict[str, Arguments]:
    x = numbers(2, 3, 4)
    calls: dict[str, Arguments] = {f"{name}_backward": backward for name, (_, backward) in _recurrent().items()}
    for name in ("relu", "gelu", "silu"):
        calls[f"{name}_input"] = {"input": x, "grad_output": x}
    for name in ("tanh", "sigmoid"):
        calls[f"{name}_input"] = {
            "output" if "output" in inspect.signature(getattr(grad, f"{name}_input")).parameters else "input": x,
            "grad_output": x,
        }
    for name in ("softmax", "log_softmax"):
        calls[f"{name}_input"] = {"output": x, "grad_output": x, "dim": 1}
    for rank in (1, 2, 3):
        images, kernel, result = numbers(2, 4, *(5,) * rank), numbers(6, 2, *(3,) * rank), numbers(2, 6, *(3,) * rank)
        calls[f"conv{rank}d_input"] = {"input_size": images.shape, "weight": kernel, "grad_output": result, "groups": 2}
        calls[f"conv{rank}d_weight"] = {"input": images, "weight_size": kernel.shape, "grad_output": result, "groups": 2}
        kernel, result = numbers(4, 3, *(3,) * rank), numbers(2, 6, *(7,) * rank)
        calls[f"conv_transpose{rank}d_input"] = {"input_size": images.shape, "weight": kernel, "grad_output": result, "groups": 2}
        calls[f"conv_transpose{rank}d_weight"] = {"input": images, "weight_size": kernel.shape, "grad_output": result, "groups": 2}
        pooled = numbers(2, 4, *(2,) * rank)
        calls[f"max_pool{rank}d_input"] = {"input": images, "grad_output": pooled, "kernel_size": 2}
        calls[f"avg_pool{rank}d_input"] = {"input_size": images.shape, "grad_output": pooled, "kernel_size": 2}
        calls[f"adaptive_avg_pool{rank}d_input"] = {"input_size": images.shape, "grad_output": pooled, "output_size": 2}
    calls["linear_bias"] = {"grad_output": x}
    calls["linear_input"] = {"weight": numbers(4, 5), "grad_output": x}
    calls["linear_weight"] = {"input": numbers(2, 3, 5), "grad_output": x}
    calls["layer_norm_backward"] = {"input": x, "grad_output": x, "normalized_shape": (4,), "weight": numbers(4)}
    calls["batch_norm_backward"] = {"input": x, "grad_output": x, "weight": numbers(3)}
    calls["scaled_dot_product_attention_backward"] = {
        "query": x,
        "key": x,
        "value": x,
        "grad_output": numbers(2, 3, 4),
        "attn_mask": numbers(3, 3),
    }
    calls["varlen_attn_backward"] = {"query": x, "key": x, "value": x, "grad_output": x, "cu_seq_q": np.array([0, 2])}
    return calls


def _root() -> dict[str, Arguments]:
    a, b, batch = numbers(3, 4), numbers(4, 5), numbers(2, 3, 3)
    v, factor = numbers(4), np.linalg.cholesky(positive_definite())
    return {
        "addmm": {"input": numbers(3, 5), "mat1": a, "mat2": b}, "baddbmm": {"input": batch, "batch1": batch, "batch2": batch},
        "bmm": {"input": batch, "mat2": batch}, "mm": {"input": a, "mat2": b}, "matmul": {"input": a, "other": b},
        "mv": {"input": a, "vec": v}, "dot": {"input": v, "tensor": v}, "vdot": {"input": v, "other": v},
        "outer": {"input": v, "vec2": v}, "chain_matmul": {"*matrices": (a, b)},
        "cholesky_inverse": {"L": factor}, "cholesky_solve": {"B": numbers(3, 2), "L": factor},
        "einsum": {"equation": "ij,jk->ik", "*operands": (a, b)}, "empty": {"*shape": (2, 3)}, "prepack": {"other": a},
        "addbmm": {"input": numbers(3, 3), "batch1": batch, "batch2": batch}, "cdist": {"x1": a, "x2": a},
        "cross": {"input": b[:3], "other": b[1:]}, "diagonal": {"input": a}, "inner": {"input": a, "other": a},
        **{name: {"input": a} for name in ELEMENTARY},
        "kron": {"input": a, "other": b}, "manual_seed": {"seed": 1}, "matrix_exp": {"A": batch}, "orgqr": {"A": numbers(4, 3), "tau": numbers(3)},
        "trace": {"input": b}, "stft": {"input": numbers(20), "n_fft": 8}, "vander": {"x": v}, "tensordot": {"a": a, "b": b, "dims": 1},
    }  # fmt: skip


def _quantized() -> dict[str, Arguments]:
    x, weight = _qarray(2, 4), quantized.quantize_weights(numbers(5, 4, dtype=np.float32))
    images, kernel = _qarray(1, 2, 4, 4), quantized.quantize_weights(numbers(3, 2, 3, 3, dtype=np.float32))
    floats = numbers(2, 4, dtype=np.float32)
    result = {"scale": 0.1, "zero_point": 3}
    whole = np.ones((3, 3), np.int8)
    return {
        "QArray": {"int_repr": x.int_repr, "scale": 0.1}, "dequantize": {"x": x}, "requantize": {"x": x, "scale": 0.1},
        "int_mm": {"input": whole, "mat2": whole},
        "quantize": {"x": floats, "scale": 0.01}, "quantize_weights": {"weight": floats},
        "linear_prepack": {"weight": weight, "bias": numbers(5, dtype=np.float32)},
        "conv2d_prepack": {"weight": kernel, "bias": numbers(3, dtype=np.float32)},
        "linear": {"x": x, "packed": quantized.linear_prepack(weight), **result},
        "linear_dynamic": {"x": floats, "packed": quantized.linear_prepack(weight)},
        "conv2d": {"x": images, "packed": quantized.conv2d_prepack(kernel), **result},
    }  # fmt: skip


def _sparse() -> dict[str, Arguments]:
    pruned = sparse.prune_2_4(numbers(64, 64, dtype=np.float32))
    return {
        "compress": {"input": pruned}, "prune_2_4": {"input": pruned}, "to_sparse_semi_structured": {"original_tensor": pruned},
        "matmul": {"input": sparse.compress(pruned), "other": numbers(64, 64, dtype=np.float32)},
    }  # fmt: skip


_MAKE: dict[str, Callable[[], dict[str, Arguments]]] = {
    "": _root, "linalg.": _linalg, "fft.": _fft, "functional.": _layers, "grad.": _gradients, "quantized.": _quantized, "sparse.": _sparse,
    "nn.": lambda: {name: given for name, (given, _) in _recurrent().items()},
}  # fmt: skip


def public_names() -> list[str]:
    """Every public callable of the modules with operations, "linalg.norm" and the like."""
    return [
        prefix + name
        for prefix, module in MODULES.items()
        for name in module.__all__
        if callable(getattr(module, name)) and not isinstance(getattr(module, name), ModuleType)
    ]


def operations() -> list[str]:
    return [name for name in public_names() if name not in NO_OPERATIONS]


def function(name: str) -> Any:
    prefix, _, last = name.rpartition(".")
    return getattr(MODULES[f"{prefix}." if prefix else ""], last)


def arguments(name: str) -> Arguments:
    """The valid call of an operation: every parameter of its signature, with the default where the table has none."""
    prefix, _, last = name.rpartition(".")
    given = _MAKE[f"{prefix}." if prefix else ""]()[last]
    found: Arguments = {}
    for parameter in inspect.signature(function(name)).parameters.values():
        key = f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name
        assert key in given or parameter.default is not parameter.empty, f"{name}: no value of {key}"
        found[key] = given.get(key, parameter.default)
    assert not given.keys() - found.keys(), f"{name} has no parameter {given.keys() - found.keys()}"
    return found


def call(name: str, given: Arguments) -> Any:
    """Calls an operation with arguments by name."""
    op = function(name)
    positional: list[Any] = []
    keywords = {}
    for parameter in inspect.signature(op).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += given[f"*{parameter.name}"]
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(given[parameter.name])
        else:
            keywords[parameter.name] = given[parameter.name]
    return op(*positional, **keywords)


def arrays_in(result: Any) -> Iterator[Any]:
    """The arrays of a result, however deep in tuples."""
    if isinstance(result, np.ndarray):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from arrays_in(part)
    elif isinstance(result, quantized.QArray):
        yield result.int_repr
