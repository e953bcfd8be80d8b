"""NNPACK: convolutions by transforms of tiles."""
