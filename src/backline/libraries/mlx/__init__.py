"""Libraries for the arrays of MLX: Apple's GPU through Metal, and MLX's CPU stream."""
