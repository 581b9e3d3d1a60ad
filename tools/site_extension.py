"""What the site shows of docstrings: completed as at run time, and without the roles of Sphinx.

An extension of griffe, which reads the docstrings for the Python reference (zensical.toml).
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`(~?)([^`]+)`")
_ROOT = Path(__file__).resolve().parents[1]
_DOCSTRINGS = runpy.run_path(str(_ROOT / "tfcollective" / "tensorflow" / "_docstrings.py"))


class Docstrings(griffe.Extension):
    """Applies what decorators do to docstrings, and writes ``:func:`name``` as ``name``."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Completes the docstring of a function that one of these decorators completes when it is imported."""
        decorators = {str(decorator.value) for decorator in func.decorators}
        if func.docstring and decorators.intersection(_DOCSTRINGS["COMPLETING"]):
            names = [parameter.name for parameter in func.parameters]
            func.docstring.value = _DOCSTRINGS["completed"](func.docstring.value, names)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replaces the roles; ``:func:`~package.name``` becomes ``name`` without its package."""
        if obj.docstring:
            obj.docstring.value = _ROLE.sub(_plain, obj.docstring.value)


def _plain(role: re.Match[str]) -> str:
    return f"`{role[2].rpartition('.')[2] if role[1] else role[2]}`"
