"""cuFFT."""
