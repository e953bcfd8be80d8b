"""cuBLAS."""
