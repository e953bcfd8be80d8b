"""FFTW 3, as the system has it: never bundled, used if it is found."""
