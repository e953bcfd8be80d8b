"""Code shared by the BLAS libraries: products, LAPACK, and layers built from products."""
