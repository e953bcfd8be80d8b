"""libmvec, the functions of vectors in the GNU C library."""
