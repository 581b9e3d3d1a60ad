"""Small JSON files that are there whole or not at all."""

from __future__ import annotations

import json
from typing import Any

from tfcollective.files import Place, local_copy, written_whole

__all__ = ["read_json", "write_json"]


def write_json(place: Place, value: Any) -> None:
    """Puts `value` at `place`, which it replaces at once."""
    with written_whole(place) as path:
        path.write_text(json.dumps(value), encoding="utf-8")


def read_json(place: Place) -> Any:
    """What is at `place`; None if nothing is. Raises ValueError if it is not JSON, OSError if it cannot be read."""
    try:
        with local_copy(place) as path:
            return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
