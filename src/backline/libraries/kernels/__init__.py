"""The loops of the compiled module `_kernels`: numeric code that no vendor library has."""
