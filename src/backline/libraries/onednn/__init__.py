"""oneDNN on the CPU: products, convolutions, and the layers between them, through its C interface."""
