"""Tests of a library before it is used: in a child process, then by calls whose answers are known."""
