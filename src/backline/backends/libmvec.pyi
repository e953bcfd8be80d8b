# Made by `backline.cli.docs.write_stubs` from the row of the library. Do not edit.
from ._library_module import *  # noqa: F403
