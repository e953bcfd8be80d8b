"""Formulas over an array namespace, and the reference results in NumPy."""
