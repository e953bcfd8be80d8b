"""BLIS."""
