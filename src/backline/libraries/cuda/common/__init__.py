"""What the libraries of CUDA devices share."""
