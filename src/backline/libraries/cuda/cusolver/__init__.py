"""cuSOLVER."""
