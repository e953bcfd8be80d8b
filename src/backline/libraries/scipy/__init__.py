"""SciPy's Fourier transforms."""
