"""The nodes that have enrolled with a job: pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tfcollective._control.messages import EnrolledNode

_MOST_ENDED = 1000
_PAGE_BYTES = 1 << 20


class Enrolments:
    """The nodes of one job. Not thread-safe.

    Agents may come and end as long as the job runs: only the newest of the ended ones are kept.

    Attributes:
        count: how many have enrolled so far, including those no longer kept.
    """

    def __init__(self) -> None:
        self.count = 0
        self._numbers: dict[str, int] = {}  # of the nodes that are kept, by token
        self._kept: dict[int, tuple[str, EnrolledNode, int]] = {}  # by number, ascending: token, node, bytes
        self._ended: dict[int, None] = {}  # of the nodes that are kept, in the order in which they ended

    def __contains__(self, number: int) -> bool:
        return number in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, token: str, facts: Mapping[str, object]) -> int:
        """The number of the node with this token, which is new or enrols a second time."""
        if token not in self._numbers:
            node = EnrolledNode(self.count, facts)
            self._numbers[token] = node.number
            self._kept[node.number] = token, node, len(json.dumps(facts))
            self.count += 1
        return self._numbers[token]

    def end(self, number: int) -> int | None:
        """Notes the end of this node; returns the number of a node that is forgotten to make room for it, or None."""
        if number not in self._kept or number in self._ended:
            return None
        self._ended[number] = None
        if len(self._ended) <= _MOST_ENDED:
            return None
        oldest = next(iter(self._ended))
        del self._ended[oldest]
        token, *_ = self._kept.pop(oldest)
        del self._numbers[token]
        return oldest

    def since(self, number: int) -> tuple[EnrolledNode, ...]:
        """The nodes from this number on, in their order: as many as fit into a page, but one if there is any."""
        page: list[EnrolledNode] = []
        used = 0
        first = next(iter(self._kept), self.count)
        for kept in filter(self._kept.__contains__, range(max(number, first), self.count)):
            _, node, size = self._kept[kept]
            used += size
            if page and used > _PAGE_BYTES:
                break
            page.append(node)
        return tuple(page)
