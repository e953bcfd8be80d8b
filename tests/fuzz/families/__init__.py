"""The generators of calls, a module for each family of operations; importing this package registers all of them."""

from . import attention, conv, eight_bit, einsum, fft, linalg, neural, norms, pooling, products, quantized, rnn, spectra, vectors  # noqa: F401  # imported so that each registers its generators
