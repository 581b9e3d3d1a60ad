"""Many hosts in few words: pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tfcollective._base.errors import ConfigError

_MAX_HOSTS = 100_000
_WORDS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def split_hosts(text: str) -> list[str]:
    """The words between commas, except commas in brackets. ConfigError for empty words and single brackets."""
    words = _WORDS.findall(text)
    if ",".join(words) != text or not words:
        raise ConfigError(f"{text!r} is not a list of hosts such as node[01-16],gpu3")
    return words


def expand_hosts(text: str) -> list[str]:
    """The hosts of SLURM's compact form: ``n[01-03,7],gpu`` is n01, n02, n03, n7, gpu. ConfigError if it is none."""
    hosts: list[str] = []
    for word in split_hosts(text):
        for host in _expand(word, text):
            hosts.append(host)
            if len(hosts) > _MAX_HOSTS:
                raise ConfigError(f"{text[:80]!r} names more than {_MAX_HOSTS} hosts")
    return hosts


def _expand(word: str, text: str) -> Iterator[str]:
    before, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    inside, _, after = rest.partition("]")
    for item in inside.split(","):
        found = _RANGE.fullmatch(item)
        if found is None:
            raise ConfigError(f"{text[:80]!r} is not a list of hosts: {item[:80]!r} is not a range such as 01-16")
        first, last = found.group(1), found.group(2) or found.group(1)
        if int(last) < int(first):
            raise ConfigError(f"{text!r} is not a list of hosts: the range {item!r} ends before it begins")
        for number in range(int(first), int(last) + 1):
            for tail in _expand(after, text):
                yield f"{before}{number:0{len(first)}d}{tail}"
