"""Memory that was freed, back to the system."""

import ctypes


def return_freed_memory() -> None:
    """glibc keeps what tensors of up to 32 MiB leave between those that stay: 12 % of the weights, measured on a load
    of 302 MiB. Other allocators are left to themselves."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
