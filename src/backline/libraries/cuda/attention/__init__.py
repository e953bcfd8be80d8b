"""Attention kernels of our own, in Triton."""
