"""NVIDIA's libraries, for CuPy's arrays. Arrays, streams and memory are CuPy's; what computes is called through bindings."""
