"""A job as YAML that can be applied to a cluster, or put into version control: pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from tfcollective_launchers.kubernetes.kinds import BUILDERS, Wanted

_WIDTH = 100
_KEYLESS = ("mpijob",)
# What kubectl, whose parser is not Python's, would read as a truth value or as a number.
_AMBIGUOUS = re.compile(r"[yYnN]|[-+]?\.?[0-9][0-9a-fA-F_.xXoO+-]*")


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, as people write them, and nothing is an alias of anything."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """See :class:`yaml.SafeDumper`."""
        del indentless
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        """See :class:`yaml.SafeDumper`."""
        del data
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else "'" if _AMBIGUOUS.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def manifest_of(wanted: Wanted, typed: Sequence[str] = ()) -> str:
    """The manifest of the kind that the options name. The same arguments give the same text; no key is in it.

    ``typed`` is the command line that it is made by, for a comment. Raises ConfigError and UnsupportedError for what
    Kubernetes, or the kind, would refuse.
    """
    wanted.check_gpus()
    objects = BUILDERS[wanted.options.kind](wanted)
    documents = [yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True) for one in objects]
    heading = "".join(f"# {line}\n" for text in _heading(wanted, typed) for line in text.splitlines())
    return heading + "---\n".join(documents)


def _heading(wanted: Wanted, typed: Sequence[str]) -> list[str]:
    lines = [f"Made by: {shlex.join(typed)}"] if typed else []
    if wanted.options.kind in _KEYLESS:
        return lines
    space = f" --namespace {wanted.options.namespace}" if wanted.options.namespace else ""
    secret = wanted.options.key_secret or f"{wanted.name}-key"
    make = f"kubectl create secret generic {secret}{space} --from-file=key=/dev/stdin"
    return [
        *lines,
        f"The job key is in the Secret {secret}, which is not in this file. To make it, once:",
        f"  openssl rand -hex 32 | {make}",
    ]
