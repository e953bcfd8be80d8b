"""Differential fuzzing: random calls of every operation, by every algorithm of every library, against wider arithmetic.

``make fuzz SECONDS=3600 SEED=7`` runs it; ``make fuzz CASE=7:1234`` repeats one case and prints what it calls.
"""
