# What every module of `backends` has that is made from the row of a library.
from ._module_factory import Flags, IsTrue, SetFlags, Version

enabled: bool
flags: Flags
is_available: IsTrue
is_enabled: IsTrue
set_flags: SetFlags
version: Version
