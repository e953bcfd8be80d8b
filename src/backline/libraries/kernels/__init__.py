"""Loops of the compiled module `_kernels`, as algorithms."""
