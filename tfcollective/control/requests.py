"""The body of a request, checked field by field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tfcollective.errors import ConfigError
from tfcollective.tasks import TaskKey

__all__ = ["BadRequest", "Body"]


class BadRequest(Exception):  # noqa: N818  an answer, not a fault of ours
    """A body that is not what the path expects; the text says why."""


@dataclass(frozen=True)
class Body:
    """A JSON object; every accessor raises BadRequest unless the field is there and of its type."""

    _fields: Mapping[str, object]

    @classmethod
    def parse(cls, data: bytes) -> Body:
        """Reads JSON text."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadRequest("the body is no JSON") from error
        if not isinstance(document, dict):
            raise BadRequest("the body is no JSON object")
        return cls(document)

    def value(self, name: str) -> object:
        """Any JSON value."""
        if name not in self._fields:
            raise BadRequest(f"the field {name!r} is missing")
        return self._fields[name]

    def text(self, name: str) -> str:
        """A string."""
        value = self.value(name)
        if not isinstance(value, str):
            raise BadRequest(f"the field {name!r} is no string")
        return value

    def integer(self, name: str) -> int:
        """A whole number."""
        value = self.value(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadRequest(f"the field {name!r} is no whole number")
        return value

    def number(self, name: str) -> float:
        """A finite number, 0 or more."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise BadRequest(f"the field {name!r} is no number of 0 or more")
        return float(value)

    def mapping(self, name: str) -> Mapping[str, object]:
        """An object."""
        value = self.value(name)
        if not isinstance(value, dict):
            raise BadRequest(f"the field {name!r} is no object")
        return value

    def task(self, name: str) -> TaskKey:
        """A task."""
        try:
            return TaskKey.parse(self.text(name))
        except ConfigError as error:
            raise BadRequest(str(error)) from error
