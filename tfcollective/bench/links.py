"""Where ranks run: all on this host, or each on a host of its own at the end of a cable. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tfcollective.bench.netlab import parse_rate
from tfcollective.errors import ConfigError

__all__ = ["LOOPBACK", "check_links"]

LOOPBACK = "loopback"


def check_links(links: Sequence[str]) -> None:
    """ConfigError unless there are links and each is ``loopback`` or a rate."""
    if not links:
        raise ConfigError(f"--link: at least one of {LOOPBACK} and rates such as 1gbit")
    for link in links:
        if link != LOOPBACK and not _is_rate(link):
            raise ConfigError(f"--link: {link!r} is neither {LOOPBACK} nor a rate such as 1gbit, 10gbit or 500mbit")


def _is_rate(link: str) -> bool:
    try:
        return parse_rate(link) is not None
    except ConfigError:
        return False
