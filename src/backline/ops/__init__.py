"""What users call. Each operation checks its arguments, says what it is asked as a Problem, and leaves the rest to the engine."""
