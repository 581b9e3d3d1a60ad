"""Whether a platform can be used from here: what is looked at, and how to mend what is wrong."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CheckedLauncher", "Finding"]


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``remedy`` is there when it failed."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


class CheckedLauncher(ABC):
    """A launcher whose platform can be looked at before a job is given to it."""

    @abstractmethod
    def check(self, platform: Mapping[str, Any]) -> Iterator[Finding]:
        """Looks at one thing after the other, as a job with these platform settings would need it; may run a small job.

        Ends early when what comes next cannot work. Raises ConfigError for settings that cannot be used.
        """
