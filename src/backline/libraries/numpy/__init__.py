"""NumPy as a library: always there."""
