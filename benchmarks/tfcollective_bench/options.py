"""Parses options that benchmarks share: links (ranks on this host, or each on a host of its own), and numbers.
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tfcollective._base.errors import ConfigError
from tfcollective_bench.testbed import parse_rate

__all__ = ["LOOPBACK", "check_above_zero", "check_links", "is_rate"]

LOOPBACK = "loopback"


def check_links(links: Sequence[str]) -> None:
    """ConfigError unless there are links and each is ``loopback`` or a rate."""
    if not links:
        raise ConfigError(f"--link: at least one of {LOOPBACK} and rates such as 1gbit")
    for link in links:
        if link != LOOPBACK and not is_rate(link):
            raise ConfigError(f"--link: {link!r} is neither {LOOPBACK} nor a rate such as 1gbit, 10gbit or 500mbit")


def is_rate(link: str) -> bool:
    """True if `link` is a rate such as 1gbit, to which a link can be shaped."""
    try:
        return parse_rate(link) is not None
    except ConfigError:
        return False


def check_above_zero(**given: float) -> None:
    """ConfigError that names the option and its value, unless all are above 0."""
    for name, value in given.items():
        if not value > 0:  # also what is not a number
            raise ConfigError(f"--{name.replace('_', '-')}: expected a number above 0, got {value:g}")
