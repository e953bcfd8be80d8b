"""What the libraries with a BLAS share: products, LAPACK, and layers made of their products."""
