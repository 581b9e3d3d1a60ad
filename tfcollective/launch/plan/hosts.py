"""Which hosts a job may use, and how many ranks go to each: pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tfcollective.errors import ConfigError
from tfcollective.host_names import expand_hosts, split_hosts

__all__ = ["Host", "Share", "parse_discovered", "parse_hostfile", "parse_hosts", "share_out", "without"]

# A name that begins with a dash would be an option to ssh.
_NAME = re.compile(r"^(?:[\w.][\w.-]*@)?[\w.][\w.-]*$")
_BRACKETED = re.compile(r"^\[([^\[\]]*:[^\[\]]*)\](?::(.*))?$")
_SLOTS, _MAX_SLOTS = ("slots",), ("max-slots", "max_slots")


@dataclass(frozen=True)
class Host:
    """A host, as ssh knows it (``user@name`` is allowed), and how many ranks it takes."""

    name: str
    slots: int = 1

    def __str__(self) -> str:
        return f"[{self.name}]:{self.slots}" if ":" in self.name else f"{self.name}:{self.slots}"


@dataclass(frozen=True)
class Share:
    """The ranks of one host: ``count`` of them, from ``first`` on."""

    host: Host
    first: int
    count: int


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Reads ``host1:4,host2:4``; a host without a number has one slot.

    Also ``node[01-16]:8`` and IPv6 addresses in brackets, ``[::1]:2``. Raises ConfigError for anything else, for a
    host that stands there twice, and for numbers below 1.
    """
    where = f"hosts {text!r}"
    try:
        words = split_hosts(text.strip())
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}; write for example host1:4,host2:4") from error
    return _checked([host for word in words for host in _parse_word(word.strip(), where)], where)


def parse_hostfile(text: str, name: str) -> tuple[Host, ...]:
    """Reads one host a line: ``host slots=4``, ``host:4`` or ``host``; ``#`` begins a comment.

    ``max-slots=N`` is an upper limit, as for Open MPI: without ``slots`` it is the number. ``name`` is the file's, for
    messages. Raises ConfigError.
    """
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            hosts.extend(_parse_line(words, f"{name}, line {number}"))
    if not hosts:
        raise ConfigError(f"{name} names no host")
    return _checked(hosts, name)


def parse_discovered(text: str, slots: int | None, where: str) -> tuple[Host, ...]:
    """Reads what a discovery script prints, one host a line: ``host:4``, or ``host`` with ``slots``. Empty lines and
    hosts with 0 slots are left out; of a host that stands there twice, the last line counts. Two names of one machine
    are two hosts. ``where`` names the script, for messages. Raises ConfigError."""
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word, place = line.strip(), f"{where}, line {number}"
        if not word:
            continue
        name, colon, count = word.rpartition(":")
        given = bool(colon) and not word.endswith("]")
        if not given and slots is None:
            raise ConfigError(f"{place}: {word!r} has no number of slots: print HOST:SLOTS, or give --slots N")
        if given and count == "0":
            hosts.pop(name, None)
            continue
        for host in _parse_word(word, place):
            hosts.pop(host.name, None)
            hosts[host.name] = host if given else Host(host.name, slots or 1)
    return tuple(hosts.values())


def without(hosts: Iterable[Host], names: Collection[str]) -> tuple[Host, ...]:
    """The hosts that have none of these names."""
    return tuple(host for host in hosts if host.name not in names)


def share_out(hosts: Sequence[Host], num_proc: int | None) -> tuple[Share, ...]:
    """Deals ranks to the hosts, in their order: each host gets as many as it has slots before the next gets any.

    ``num_proc`` None means all slots. Hosts that get none are left out. ConfigError when there are too few slots.
    """
    slots = sum(host.slots for host in hosts)
    wanted = slots if num_proc is None else num_proc
    if wanted > slots:
        listed = ", ".join(map(str, hosts[:8])) + (", ..." if len(hosts) > 8 else "")
        raise ConfigError(f"{wanted} processes do not fit into the {slots} slots of {listed}: give more hosts or slots")
    return tuple(_shares(hosts, wanted))


def _shares(hosts: Iterable[Host], wanted: int) -> Iterator[Share]:
    first = 0
    for host in hosts:
        count = min(host.slots, wanted - first)
        if count > 0:
            yield Share(host, first, count)
            first += count


def _parse_line(words: Sequence[str], where: str) -> list[Host]:
    numbers: dict[str, int] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in (*_SLOTS, *_MAX_SLOTS):
            raise ConfigError(f"{where}: unknown word {word!r}: write HOST slots=N max-slots=M")
        numbers["slots" if key in _SLOTS else "max-slots"] = _slots(value, where)
    hosts = _parse_word(words[0], where)
    if numbers and re.search(r"(^[^\[]*|\]):", words[0]):
        raise ConfigError(f"{where}: {words[0]!r} has a number of slots already")
    most = numbers.get("max-slots")
    slots = numbers.get("slots", most)
    if slots is None:
        return hosts
    if most is not None and slots > most:
        raise ConfigError(f"{where}: slots={slots} is more than max-slots={most}")
    return [Host(host.name, slots) for host in hosts]


def _parse_word(word: str, where: str) -> list[Host]:
    """``host``, ``host:4``, ``node[1-3]:4`` or ``[::1]:4``."""
    bracketed = _BRACKETED.match(word)
    if bracketed is not None:
        return [Host(_address(bracketed[1], where), _slots(bracketed[2], where))]
    name, colon, number = word.partition(":")
    if ":" in number:
        raise ConfigError(f"{where}: write an IPv6 address in brackets: [{word}]:SLOTS")
    slots = _slots(number if colon else None, where)
    try:
        names = expand_hosts(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    for one in names:
        if not _NAME.match(one):
            raise ConfigError(f"{where}: {one!r} cannot be the name of a host")
    return [Host(one, slots) for one in names]


def _slots(text: str | None, where: str) -> int:
    if text is None:
        return 1
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{where}: slots: expected 1 or more, got {text!r}")
    return int(text)


def _address(text: str, where: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} is no IPv6 address") from error


def _checked(hosts: Sequence[Host], where: str) -> tuple[Host, ...]:
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            raise ConfigError(f"{where}: {host.name} stands there twice; write it once, with all its slots")
        seen.add(host.name)
    return tuple(hosts)
