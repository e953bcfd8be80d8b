"""The engine: which library runs a Problem and why, and the Plans that carry it out."""
