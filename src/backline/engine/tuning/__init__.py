"""Measuring, and the records of what was measured."""
