"""The check of vendor kernels: every algorithm of every CPU library over problems with edges, in processes that may crash.

`cases` are the problems, `memory` puts their arrays beside pages that must not be touched, `child` runs them, and `runs` starts
children, tells which case ended one, and makes errata of what failed.
"""
