"""Modules shared by the libraries of CUDA devices."""
