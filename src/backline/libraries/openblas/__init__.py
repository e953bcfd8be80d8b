"""OpenBLAS."""
