"""Makes roles of Sphinx in docstrings plain code on the site, where they would be shown as they are written.

An extension of griffe, which reads the docstrings for the Python reference (zensical.toml).
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`(~?)([^`]+)`")


class Roles(griffe.Extension):
    """Writes ``:func:`name``` as ``name``, and ``:func:`~package.name``` as ``name`` without its package."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of what has just been read."""
        if obj.docstring:
            obj.docstring.value = _ROLE.sub(_plain, obj.docstring.value)


def _plain(role: re.Match[str]) -> str:
    return f"`{role[2].rpartition('.')[2] if role[1] else role[2]}`"
