"""cuBLASLt."""
