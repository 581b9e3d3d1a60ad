"""Dictionaries that PyYAML writes as it writes those of Keras: it refuses subclasses that it has not been told of."""

from __future__ import annotations

import functools
from typing import Any


class YamlDictionary(dict):  # type: ignore[type-arg]
    """A dictionary with attributes, which no file holds: pickle and YAML write a plain one."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        _let_yaml_write(type(self))

    def __reduce__(self) -> Any:
        """A plain dictionary, in another process."""
        return dict, (dict(self),)


@functools.cache
def _let_yaml_write(kind: type) -> None:
    """Does nothing where PyYAML is not installed."""
    try:
        import yaml
    except ImportError:
        return
    names = ("SafeDumper", "Dumper", "CSafeDumper", "CDumper")
    for dumper in (getattr(yaml, name) for name in names if hasattr(yaml, name)):
        dumper.add_representer(kind, lambda writer, content: writer.represent_dict(content))
