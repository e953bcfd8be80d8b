"""CuPy as a library: elementwise work and reductions."""
