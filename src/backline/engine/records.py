"""placeholder until the helper's lands"""
def find(problem, threads): return None
def keep(record): pass
