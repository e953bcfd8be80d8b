"""Operations that users call: each checks its arguments and builds a Problem, and the engine does the rest."""
