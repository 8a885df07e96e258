"""Bytes for people."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(count: int) -> str:
    """Three digits and a unit."""
    scaled, unit = float(count), 0
    while scaled >= 1000 and unit + 1 < len(_UNITS):
        scaled, unit = scaled / 1024, unit + 1
    return f"{scaled:.3g} {_UNITS[unit]}"
