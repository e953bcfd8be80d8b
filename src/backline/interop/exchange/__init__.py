"""The exchange of the BLAS and LAPACK under NumPy and SciPy; `backline.interop.numpy` is how a program uses it."""
