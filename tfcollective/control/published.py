"""What tasks publish, as JSON. JSON has no NaN and no infinity: they travel as text, and become numbers again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["read_published", "write_published"]

_NUMBERS = {text: float(text) for text in ("NaN", "Infinity", "-Infinity")}


def write_published(info: Mapping[str, object]) -> dict[str, object]:
    """The same without numbers that JSON does not know. TypeError when it holds what JSON does not know otherwise."""
    said: dict[str, object] = json.loads(json.dumps(dict(info)), parse_constant=str)
    return said


def read_published(value: Any) -> Any:
    """What :func:`write_published` was given."""
    if isinstance(value, Mapping):
        return {name: read_published(one) for name, one in value.items()}
    if isinstance(value, list):
        return [read_published(one) for one in value]
    return _NUMBERS.get(value, value) if isinstance(value, str) else value
