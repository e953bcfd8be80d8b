"""The doctor: a table of checks over the facts of one environment, and the findings that they return.

`table` lists the checks, `facts` reads what they look at, `measurements` times what is measured, in a process of its own.
"""
