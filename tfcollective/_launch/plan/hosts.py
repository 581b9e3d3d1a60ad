"""The hosts that a job may use, and the number of ranks on each: pure."""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfcollective._base.addresses import is_own_host
from tfcollective._base.errors import ConfigError
from tfcollective._base.host_names import expand_hosts, split_hosts

# A name that begins with a dash would be an option to ssh.
_NAME = re.compile(r"^(?:[\w.][\w.-]*@)?[\w.][\w.-]*$")
_BRACKETED = re.compile(r"^\[([^\[\]]*:[^\[\]]*)\](?::(.*))?$")
_SLOTS, _MAX_SLOTS = ("slots",), ("max-slots", "max_slots")
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Host:
    """A host, as ssh knows it (``user@name`` is allowed), and how many ranks it takes."""

    name: str
    slots: int = 1

    @property
    def is_this_machine(self) -> bool:
        """True if the name is one of this machine's."""
        return is_own_host(self.name)

    def __str__(self) -> str:
        return f"[{self.name}]:{self.slots}" if ":" in self.name else f"{self.name}:{self.slots}"


@dataclass(frozen=True)
class Share:
    """The ranks of one host: ``count`` of them, from ``first`` on."""

    host: Host
    first: int
    count: int


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Reads ``host1:4,host2:4``; a host without a number has one slot for each time that it stands there.

    Also ``node[01-16]:8`` and IPv6 addresses in brackets, ``[::1]:2``. Raises ConfigError for anything else, for a
    host with a number that stands there twice, and for numbers below 1.
    """
    where = f"hosts {text!r}"
    return _together(_entries(text.strip(), where), where)


def parse_hostfile(text: str, name: str) -> tuple[Host, ...]:
    """Reads one host a line: ``host slots=4``, ``host:4`` or ``host``; ``#`` begins a comment.

    ``max-slots=N`` is an upper limit, as for Open MPI: without ``slots`` it is the number. A line can be a list, too.
    A host without a number has one slot for each line, as batch systems write it. ``name`` is the file's, for messages.
    Raises ConfigError.
    """
    entries = [
        entry
        for number, line in enumerate(text.splitlines(), 1)
        for entry in _parse_line(line, f"{name}, line {number}")
    ]
    if not entries:
        raise ConfigError(f"{name} names no host")
    return _together(entries, name)


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts that a file names, see :func:`parse_hostfile`. Raises ConfigError for one that cannot be read, too."""
    try:
        return parse_hostfile(path.read_text("utf-8-sig"), str(path))  # editors of Windows write a byte-order mark
    except OSError as error:
        raise ConfigError(f"cannot read the hostfile {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the hostfile {path} is not text in UTF-8: {error}") from error


def parse_discovered(text: str, slots: int | None, where: str) -> tuple[Host, ...]:
    """Reads what a discovery script prints: as a hostfile, and a host without a number has ``slots``. Hosts with 0
    slots are left out; of a host that stands there twice, the last line counts. Two names of one machine are two hosts.
    ``where`` names the script, for messages. Raises ConfigError."""
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.removeprefix(_BYTE_ORDER_MARK).splitlines(), 1):
        place = f"{where}, line {number}"
        for name, given in _parse_line(line, place, least=0):
            count = slots if given is None else given
            if count is None:
                raise ConfigError(f"{place}: {name!r} has no number of slots: print HOST:SLOTS, or give --slots N")
            hosts.pop(name, None)
            if count > 0:
                hosts[name] = Host(name, count)
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


def first_size(
    num_proc: int | None,
    *,
    min_proc: int | None,
    max_proc: int | None,
    hosts: Sequence[Host],
    discovery: Sequence[str],
    tasks: int = 0,
) -> tuple[int | None, int | None]:
    """Returns how many ranks a job starts with, and how few an elastic one needs; None: not given, or not elastic.

    An elastic job on given hosts takes all of their slots up to ``max_proc``, as Horovod's does. ``hosts`` are those
    that may be used, ``tasks`` how many task specs ask for. Raises ConfigError when they do not fit.
    """
    given = tasks if tasks else num_proc
    if discovery:
        first = min_proc if given is None else given
        return first, first if min_proc is None else min_proc
    if not hosts:
        return max_proc if given is None else given, min_proc
    slots = sum(host.slots for host in hosts)
    if min_proc is not None and max_proc is not None and not tasks:
        given = max(given or 0, min(slots, max_proc))
    return sum(share.count for share in share_out(hosts, given)), min_proc


def usable_hosts(hosts: Sequence[Host], blacklist: Collection[str]) -> tuple[Host, ...]:
    """The given hosts without those of the blacklist; ConfigError if none is left."""
    left = without(hosts, blacklist)
    if hosts and not left:
        raise ConfigError("blacklist: all hosts of the job are on it")
    return left


def _shares(hosts: Iterable[Host], wanted: int) -> Iterator[Share]:
    first = 0
    for host in hosts:
        count = min(host.slots, wanted - first)
        if count > 0:
            yield Share(host, first, count)
            first += count


_Entry = tuple[str, int | None]  # the name of a host, and its number of slots, if one is given


def _parse_line(line: str, where: str, least: int = 1) -> list[_Entry]:
    words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
    if not words:
        return []
    numbers: dict[str, int] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in (*_SLOTS, *_MAX_SLOTS):
            raise ConfigError(f"{where}: unknown word {word!r}: write one host a line, HOST slots=N max-slots=M")
        numbers["slots" if key in _SLOTS else "max-slots"] = _slots(value, where, least)
    entries = _entries(words[0], where, least)
    most = numbers.get("max-slots")
    slots = numbers.get("slots", most)
    if slots is None:
        return entries
    if any(given is not None for _, given in entries):
        raise ConfigError(f"{where}: {words[0]!r} has a number of slots already")
    if most is not None and slots > most:
        raise ConfigError(f"{where}: slots={slots} is more than max-slots={most}")
    return [(name, slots) for name, _ in entries]


def _entries(text: str, where: str, least: int = 1) -> list[_Entry]:
    """The hosts of ``host1:4,host2``."""
    if re.search(r"[^\s,;]\s+[^\s,;]|;", text):
        hosts = ",".join(re.findall(r"[^\s,;]+", text))
        raise ConfigError(f"{where}: separate the hosts by commas: {hosts}")
    if text.endswith(","):
        raise ConfigError(f"{where}: nothing follows the last comma; write host1:4,host2:4, without spaces")
    try:
        words = split_hosts(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}; write for example host1:4,host2:4") from error
    return [entry for word in words for entry in _parse_word(word.strip(), where, least)]


def _parse_word(word: str, where: str, least: int) -> list[_Entry]:
    """``host``, ``host:4``, ``node[1-3]:4`` or ``[::1]:4``."""
    bracketed = _BRACKETED.match(word)
    if bracketed is not None:
        return [(_address(bracketed[1], where), None if bracketed[2] is None else _slots(bracketed[2], where, least))]
    name, colon, number = word.partition(":")
    if ":" in number:
        raise ConfigError(f"{where}: {_several_colons(word)}")
    slots = _slots(number, where, least) if colon else None
    try:
        names = expand_hosts(name)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    for one in names:
        if not _NAME.match(one):
            raise ConfigError(f"{where}: {one!r} cannot be the name of a host")
    return [(one, slots) for one in names]


def _several_colons(word: str) -> str:
    address, _, last = word.rpartition(":")
    for text, slots in ((address, last), (word, "SLOTS")):
        if _is_ipv6(text) and (text == word or last.isdigit()):
            return f"write an IPv6 address in brackets: [{text}]:{slots}"
    return f"expected HOST:SLOTS, got {word!r}; the port of ssh is --ssh-port's"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _slots(text: str, where: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise ConfigError(f"{where}: slots: expected {least} or more, got {text!r}")
    return int(text)


def _address(text: str, where: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} is no IPv6 address") from error


def _together(entries: Iterable[_Entry], where: str) -> tuple[Host, ...]:
    """The hosts in the order in which each comes first."""
    found: dict[str, int | None] = {}
    times: Counter[str] = Counter()
    for name, slots in entries:
        if name in found and not (slots is None and found[name] is None):
            raise ConfigError(f"{where}: {name} stands there twice; write it once, with all its slots")
        found[name] = slots
        times[name] += 1
    return tuple(Host(name, times[name] if slots is None else slots) for name, slots in found.items())
