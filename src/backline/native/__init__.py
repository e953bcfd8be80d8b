"""The process and the machine: files, mapped libraries, processor, threads. No library is named here."""
