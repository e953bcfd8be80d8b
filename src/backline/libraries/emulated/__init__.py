"""Products in reduced precision, emulated by rounding the operands."""
