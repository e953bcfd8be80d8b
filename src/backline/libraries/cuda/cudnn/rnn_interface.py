"""cuDNN's C interface for recurrent networks, through ctypes: its frontend has no functions for them.

The signatures are those of cuDNN 9's headers; ``make test-cudnn`` compares them with the headers that are installed.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ....errors import BackendUnavailable
from ..common import bindings
from ..common.streams import Handles, current_stream

__all__ = ["SIGNATURES", "CudnnError", "Interface", "handle_for", "interface"]

# p: a pointer, or the address of a variable that is written. i, u, z, f, q: int, unsigned, size_t, float, unsigned long long.
SIGNATURES = {
    "cudnnCreate": "p",
    "cudnnSetStream": "pp",
    "cudnnCreateTensorDescriptor": "p",
    "cudnnSetTensorNdDescriptor": "piipp",
    "cudnnDestroyTensorDescriptor": "p",
    "cudnnCreateDropoutDescriptor": "p",
    "cudnnDropoutGetStatesSize": "pp",
    "cudnnSetDropoutDescriptor": "ppfpzq",
    "cudnnRestoreDropoutDescriptor": "ppfpzq",
    "cudnnDestroyDropoutDescriptor": "p",
    "cudnnCreateRNNDescriptor": "p",
    "cudnnSetRNNDescriptor_v8": "piiiiiiiiiiiipu",
    "cudnnDestroyRNNDescriptor": "p",
    "cudnnCreateRNNDataDescriptor": "p",
    "cudnnSetRNNDataDescriptor": "piiiiipp",
    "cudnnDestroyRNNDataDescriptor": "p",
    "cudnnGetRNNTempSpaceSizes": "ppippp",
    "cudnnGetRNNWeightSpaceSize": "ppp",
    "cudnnGetRNNWeightParams": "ppizpipppp",
    "cudnnRNNForward": "ppippppppppppp" + "zpzpzp",
    "cudnnRNNBackwardData_v8": "pppppppppppppppp" + "zpzpzp",
    "cudnnRNNBackwardWeights_v8": "ppipppppppzpzpzp",
}
_TYPES = {
    "p": ctypes.c_void_p, "i": ctypes.c_int32, "u": ctypes.c_uint32, "z": ctypes.c_size_t, "f": ctypes.c_float,
    "q": ctypes.c_ulonglong,
}  # fmt: skip
NOT_SUPPORTED = range(3000, 4000)  # cuDNN 9's statuses of what it does not do


class CudnnError(RuntimeError):
    """A function of cuDNN returned an error.

    Attributes
    ----------
    status
        cuDNN's number of it.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status

    @property
    def unsupported(self) -> bool:
        """True where cuDNN does not have what was asked for."""
        return self.status in NOT_SUPPORTED


class Interface:
    """Functions of a loaded library; an error status becomes a `CudnnError`.

    Addresses are ints, None is NULL.
    """

    def __init__(self, library: Any) -> None:
        self._functions: dict[str, Any] = {}
        for name, signature in SIGNATURES.items():
            function = library[name]
            function.restype, function.argtypes = ctypes.c_int, [_TYPES[letter] for letter in signature]
            self._functions[name] = function
        self._text = library["cudnnGetErrorString"]
        self._text.restype, self._text.argtypes = ctypes.c_char_p, [ctypes.c_int]
        self._last = library["cudnnGetLastErrorString"]
        self._last.restype, self._last.argtypes = None, [ctypes.c_char_p, ctypes.c_size_t]

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function with all its arguments."""
        status = self._functions[name](*arguments)
        if status:
            said = ctypes.create_string_buffer(1024)
            self._last(said, len(said))
            told = said.value.decode("utf-8", "replace").strip()
            word = (self._text(status) or b"").decode("utf-8", "replace")
            raise CudnnError(f"{name}: {word} ({status}){f': {told}' if told else ''}", status)

    def created(self, name: str) -> int:
        """Calls a function that makes an object, and returns the object."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made))
        return made.value or 0

    def sizes(self, name: str, *arguments: Any, count: int = 1) -> tuple[int, ...]:
        """Calls a function whose last arguments are sizes that it writes, and returns these."""
        written = [ctypes.c_size_t() for _ in range(count)]
        self.call(name, *arguments, *(ctypes.byref(each) for each in written))
        return tuple(each.value for each in written)

    def places(self, *arguments: Any) -> tuple[int, int]:
        """Returns the addresses of a matrix and of a bias in the memory of the weights, 0 for none.

        Arguments are those of ``cudnnGetRNNWeightParams`` up to ``linLayerID``, then the descriptors of the matrix and the bias.
        """
        matrix, bias = ctypes.c_void_p(), ctypes.c_void_p()
        *given, for_matrix, for_bias = arguments
        self.call("cudnnGetRNNWeightParams", *given, for_matrix, ctypes.byref(matrix), for_bias, ctypes.byref(bias))
        return matrix.value or 0, bias.value or 0


_interfaces: dict[int, tuple[Any, Interface]] = {}  # by the library's identity; the library is kept so that it stays unique
_handles = Handles(lambda c: int(c.created("cudnnCreate")))


def interface() -> Interface:
    """Returns the functions of the cuDNN that its frontend uses; raises `BackendUnavailable` where a function is missing."""
    library = bindings.cudnn_file()
    found = _interfaces.get(id(library))
    if found is None:
        try:
            found = _interfaces[id(library)] = library, Interface(library)
        except AttributeError as error:
            text = "This cuDNN has no recurrent networks in its C interface."
            raise BackendUnavailable(text, cause=str(error), remedy="cuDNN 9: pip install 'backline[cudnn]'") from error
    return found[1]


def handle_for(c: Interface, device: int) -> int:
    """Returns this thread's handle of a device, which is current, set to CuPy's current stream."""
    handle = _handles.get(c, device)
    c.call("cudnnSetStream", handle, current_stream() or None)
    return handle
