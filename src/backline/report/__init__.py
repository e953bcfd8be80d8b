"""Reports of programs: what ran, on what, how fast, how precisely, and how to run it again."""
