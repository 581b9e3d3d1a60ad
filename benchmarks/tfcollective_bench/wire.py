"""The limits of a link: pure."""

from __future__ import annotations

from tfcollective._base.errors import ConfigError
from tfcollective_bench.testbed import burst_bytes, parse_rate

__all__ = ["PAYLOAD", "bare_ring_seconds", "payload_rate", "ring_seconds"]

#: What is left for payload of an Ethernet frame of 1514 bytes: headers of Ethernet, IP and TCP with timestamps take 66.
#: The test bed's token buckets count whole frames, also those that segmentation offload has not cut yet.
PAYLOAD = 1448 / 1514


def payload_rate(link: str) -> float:
    """Bytes of payload a second that a link of a rate such as "1gbit" carries; ConfigError when it is no rate."""
    return _bits(link) / 8 * PAYLOAD


def bare_ring_seconds(ranks: int, nbytes: int, link: str) -> float:
    """2(p-1)/p n/B: what a ring all-reduce takes on links without headers."""
    return _ring_bytes(ranks, nbytes) / (_bits(link) / 8)


def ring_seconds(ranks: int, nbytes: int, link: str) -> float:
    """Returns the least time (s) that the bytes of a ring all-reduce take in the test bed: with headers, and with the
    burst that passes an idle link at once."""
    burst = burst_bytes(_bits(link)) * PAYLOAD
    return max(0.0, _ring_bytes(ranks, nbytes) - burst) / payload_rate(link)


def _ring_bytes(ranks: int, nbytes: int) -> float:
    return 2 * (ranks - 1) / ranks * nbytes


def _bits(link: str) -> float:
    bits = parse_rate(link)
    if bits is None:
        raise ConfigError(f"{link!r} is no rate")
    return bits
