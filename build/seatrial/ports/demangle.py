"""C++ names as people read them, by the C++ library of this machine."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_Call = Any
"""A function of a C library."""


@cache
def _functions() -> tuple[_Call, _Call] | None:
    """Return the library's demangler and the `free` for what it gives back."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        take_apart, free = library.__cxa_demangle, library.free
    except (OSError, AttributeError):
        return None
    take_apart.restype = ctypes.c_void_p
    take_apart.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    return take_apart, free


def can_demangle() -> bool:
    """Tell whether this machine has the library that knows how."""
    return _functions() is not None


def demangle(name: str) -> str:
    """Return a symbol's declaration; the name itself where it is no C++ name or nothing here can read it."""
    functions = _functions()
    if functions is None or not name.startswith("_Z"):
        return name
    take_apart, free = functions
    text = take_apart(name.encode(errors="surrogateescape"), None, None, None)
    if not text:
        return name
    try:
        return (ctypes.string_at(text) or b"").decode(errors="replace")
    finally:
        free(text)
