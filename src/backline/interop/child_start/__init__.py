"""The folder that `child_processes` puts into PYTHONPATH: of the modules in it Python imports `sitecustomize` at its start."""
