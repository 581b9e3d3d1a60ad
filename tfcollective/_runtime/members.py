"""The ranks that take part in a collective."""

from __future__ import annotations

from dataclasses import dataclass

from tfcollective._base.errors import InvalidArgumentError

GLOBAL_SET = 0  # the number of the process set of all ranks


@dataclass(frozen=True)
class Members:
    """A registered process set as this process sees it.

    Attributes:
        process_set_id: its number, by which TensorFlow's kernels find its communicator.
        ranks: its members, as ranks of the world.
        rank: this process's place among them, or -1.
        elastic: whether ranks and size may be others when a function that is traced now runs.
    """

    process_set_id: int
    ranks: tuple[int, ...]
    rank: int
    elastic: bool = False

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    @property
    def included(self) -> bool:
        """True if this process is one of them."""
        return self.rank >= 0

    @property
    def alone(self) -> bool:
        """True if nothing has to be communicated: there is one member, now and later."""
        return self.size == 1 and not self.elastic

    def place_of(self, world_rank: int, argument: str) -> int:
        """The place of a rank of the world among the members.

        Raises:
            InvalidArgumentError: it is not one of them; names `argument`.
        """
        if world_rank not in self.ranks:
            ranks = ", ".join(map(str, self.ranks))
            raise InvalidArgumentError(f"{argument}: expected one of the ranks {ranks}, got {world_rank}")
        return self.ranks.index(world_rank)
