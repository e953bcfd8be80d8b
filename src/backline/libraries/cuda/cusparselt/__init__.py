"""cuSPARSELt."""
