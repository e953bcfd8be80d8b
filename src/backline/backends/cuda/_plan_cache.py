"""``cuda.cufft_plan_cache``: the cuFFT plans that are kept for each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from numpy import integer

from ... import switches
from ...errors import BackendUnavailable, BadType, BadValue, ReadOnly, UnknownName
from ...switches.switch import nearest, show
from .. import _module_factory

__all__ = ["cuFFTPlanCache", "cuFFTPlanCacheAttrContextProp", "cuFFTPlanCacheManager", "cufft_plan_cache"]

_TITLE = "backline.backends.cuda.cufft_plan_cache"
_SIZE = (
    "cuda.cufft_plan_cache.size is a read-only property: it tells how many plans are kept."
    " Set cuda.cufft_plan_cache.max_size instead."
)
_EVERY = "cuda.cufft_plan_cache.max_size"


class cuFFTPlanCacheAttrContextProp:
    """Attribute of a plan cache: `getter` and `setter` are called with the index of its device.

    Parameters
    ----------
    getter
        Function of the index that returns the value.
    setter
        Function of the index and the new value; or a text, which makes the attribute read-only.

    Examples
    --------
    >>> class Cache:
    ...     device_index = 1
    ...     twice = cuFFTPlanCacheAttrContextProp(lambda index: 2 * index, "twice is read-only")
    >>> Cache().twice
    2
    """

    def __init__(self, getter: Callable[[int], Any], setter: Callable[[int, Any], object] | str) -> None:
        self.getter = getter
        self.setter = setter

    def __get__(self, cache: Any, kind: type | None = None) -> Any:
        return self if cache is None else self.getter(cache.device_index)

    def __set__(self, cache: Any, value: Any) -> None:
        if isinstance(self.setter, str):
            raise ReadOnly(self.setter, cause=f"it cannot become {show(value)}")
        self.setter(cache.device_index, value)


def _plans(index: int) -> Any:
    from ...engine.cufft_plan_caches import cufft_plans

    return cufft_plans(index)


class _Fixed:
    """Base of objects whose names are fixed, so that a misspelt name is an error."""

    _names: ClassVar[tuple[str, ...]] = ("clear", "flags", "max_size", "size")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        raise self._unknown(name)

    def __setattr__(self, name: str, value: object) -> None:
        prop = vars(type(self)).get(name)
        if isinstance(prop, cuFFTPlanCacheAttrContextProp):
            prop.__set__(self, value)
        elif name == "size":
            raise ReadOnly(_SIZE, cause=f"it cannot become {show(value)}")
        elif name == "max_size":
            index = self._index(f"cuda.cufft_plan_cache.max_size = {show(value)}")
            _plans(index).bound(value, depth=2)
        elif name in self._names:
            cause = f"it cannot become {show(value)}"
            raise ReadOnly(f"{_TITLE}.{name} is read-only.", cause=cause, remedy=f"set {_EVERY} instead")
        else:
            raise self._unknown(name)

    def __delattr__(self, name: str) -> NoReturn:
        raise UnknownName(f"{_TITLE}.{name} cannot be deleted.", cause="the names of a backend are fixed")

    def __dir__(self) -> list[str]:
        return sorted(self._names)

    def _index(self, what: str) -> int:
        """Returns the device that is meant, or an error if there is none for `what`."""
        raise NotImplementedError

    def flags(self, max_size: int | None = None) -> switches.Scope:
        """Returns a scope with another bound; a context manager and a decorator. None keeps what holds.

        Raises
        ------
        BadValue, BadType
            Not an int of 0 or more.
        BackendUnavailable
            There is no device.
        """
        values: dict[str, object] = {}
        if max_size is not None:
            from ...engine.cufft_plan_caches import switch_of

            values[switch_of(self._index(f"cuda.cufft_plan_cache.flags(max_size={show(max_size)})"))] = max_size
        return switches.make_scope("cuda.cufft_plan_cache.flags", values, depth=2)

    def _unknown(self, name: str) -> UnknownName:
        near = ", ".join(nearest(name, self._names)[:3])
        return UnknownName(f"{_TITLE} has no name {show(name)}.", remedy=f"the nearest names: {near}")


class cuFFTPlanCache(_Fixed):
    """The plans of one device: ``size``, ``max_size`` (may be set) and ``clear()``.

    Parameters
    ----------
    device_index
        The device.
    """

    _names = ("clear", "device_index", "flags", "max_size", "size")
    device_index: int
    size = cuFFTPlanCacheAttrContextProp(lambda index: _plans(index).size, _SIZE)
    max_size = cuFFTPlanCacheAttrContextProp(
        lambda index: _plans(index).max_size, lambda index, value: _plans(index).bound(value, depth=4)
    )

    def __init__(self, device_index: int) -> None:
        vars(self)["device_index"] = _checked(device_index)

    def clear(self) -> None:
        """Drops the plans."""
        _plans(self.device_index).clear()

    def _index(self, what: str) -> int:
        return self.device_index

    def __repr__(self) -> str:
        return f"<{_TITLE}[{self.device_index}]: {self.size} of {self.max_size}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _of_device, (self.device_index,)


class cuFFTPlanCacheManager(_Fixed):
    """The plan caches of all devices: index it for one of them. Without an index the current device's is meant."""

    _names = ("caches", "clear", "flags", "max_size", "size")

    def __init__(self) -> None:
        vars(self)["_caches"] = {}

    def __getitem__(self, device: object) -> cuFFTPlanCache:
        index = _checked(device)
        caches: dict[int, cuFFTPlanCache] = self._caches
        return caches.get(index) or caches.setdefault(index, cuFFTPlanCache(index))

    @property
    def caches(self) -> list[cuFFTPlanCache]:
        """Caches of the devices that were indexed so far."""
        return list(self._caches.values())

    @property
    def size(self) -> int:
        """Plans kept for the current device; 0 without one."""
        index = _current()
        return 0 if index is None else int(_plans(index).size)

    @property
    def max_size(self) -> int:
        """Most plans kept for the current device; what is declared without one."""
        index = _current()
        # Ignored: the switch is an int, which its value's type does not say.
        return int(switches.get(_EVERY) if index is None else _plans(index).max_size)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Drops the plans of the current device."""
        index = _current()
        if index is not None:
            _plans(index).clear()

    def _index(self, what: str) -> int:
        index = _current()
        if index is None:
            raise _no_device(what)
        return index

    def __repr__(self) -> str:
        return f"<{_TITLE}: {self.size} of {self.max_size}>"

    def __reduce__(self) -> tuple[object, ...]:
        return _manager, ()


cufft_plan_cache = cuFFTPlanCacheManager()


def _manager() -> cuFFTPlanCacheManager:
    return cufft_plan_cache


def _of_device(index: int) -> cuFFTPlanCache:
    return cufft_plan_cache[index]


# --- devices ------------------------------------------------------------------------------------------------------


def _current() -> int | None:
    from ...libraries import devices

    return devices.current() if devices.count() else None


def _no_device(what: str) -> BackendUnavailable:
    return _module_factory.unavailable("cuda", what)


def _checked(device: object) -> int:
    """Returns the index of a device: an int, "cuda:1", or a device object."""
    from ...libraries import devices

    number = devices.count()
    if not number:
        asked = f"expected 0 <= device index < 0, but got device with index {show(device)}"
        raise _no_device(f"cuda.cufft_plan_cache[{show(device)}] ({asked})")
    index = _parsed(device)
    if index is None or not 0 <= index < number:
        raise BadValue(
            f"cuda.cufft_plan_cache[{show(device)}]: there is no such device.",
            cause=f"expected 0 <= device index < {number}, but got device with index {show(device)};"
            " an index, 'cuda', 'cuda:1' or a device object of CUDA says which device is meant",
            remedy=f"0 <= index < {number}" + ("" if number > 1 else ", so 0 is the only one"),
        )
    return index


def _parsed(device: object) -> int | None:
    """Returns the index that is meant, None if none is."""
    if isinstance(device, (bool, float)):
        raise BadType(
            f"cuda.cufft_plan_cache takes an int, not {type(device).__name__}: {show(device)}",
            remedy="an index, 'cuda:1' or a device object",
        )
    if isinstance(device, (int, integer)):
        return int(device)
    number = getattr(device, "id", getattr(device, "device_id", None))
    if not isinstance(device, str) and isinstance(number, int):  # CuPy's, and cuda.core's
        return number
    kind, _, index = str(device).partition(":")
    if kind != "cuda" or not (isinstance(device, str) or hasattr(device, "index")):
        return None
    if not index:
        return _current() if str(device) == "cuda" else None
    return int(index) if index.isdecimal() and index.isascii() else None
