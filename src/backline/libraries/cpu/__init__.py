"""CPU libraries, one file each."""
