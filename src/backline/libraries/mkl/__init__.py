"""Intel's MKL."""
