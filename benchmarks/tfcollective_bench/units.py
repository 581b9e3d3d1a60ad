"""Sizes and times as people write them: pure."""

from __future__ import annotations

import re

from tfcollective._base.errors import ConfigError

__all__ = ["bandwidth_text", "bytes_text", "parse_bytes", "seconds_text"]

_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"^(\d+)\s*([KMG]?)(?:i?B)?$", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """4, 64K, 16M, 1G (units of 1024) as bytes; ConfigError otherwise."""
    found = _SIZE.match(text.strip())
    if found is None or int(found[1]) == 0:
        raise ConfigError(f"not a size: {text!r}; write bytes above 0 such as 4, 64K or 16M")
    return int(found[1]) * _BYTES[found[2].upper()]


def bytes_text(size: int) -> str:
    """The shortest exact notation: 65536 -> "64K"."""
    for unit in ("G", "M", "K"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)


def seconds_text(seconds: float) -> str:
    """A time in the unit that fits: "0.25 us", "31.6 ms", "2.5 s"."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 1000:
            return f"{_digits(seconds * factor)} {unit}"
    return f"{_digits(seconds)} s"


def bandwidth_text(bytes_per_second: float) -> str:
    """kB/s, MB/s or GB/s: of powers of 1000, as networks count."""
    for factor, unit in ((1e3, "kB/s"), (1e6, "MB/s")):
        if bytes_per_second < 1000 * factor:
            return f"{_digits(bytes_per_second / factor)} {unit}"
    return f"{_digits(bytes_per_second / 1e9)} GB/s"


def _digits(value: float) -> str:
    """Three digits that count."""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"
