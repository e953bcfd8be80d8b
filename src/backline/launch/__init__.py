"""The launcher: starts instances of a program, each on cores and memory of its own.

`topology` knows which processors there are, `counts` deals their cores out, `binding` writes the command that holds an
instance to its cores, `environment` the variables it gets, `instances` runs them; `launcher` puts these together.
Its public name is `backline.backends.xeon.run_cpu`; ``backline run`` is the same.
"""
