"""MAGMA."""
