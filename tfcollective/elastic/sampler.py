"""Which elements of the data a rank takes: divided anew whenever the world changes."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any

from tfcollective import runtime
from tfcollective.errors import InvalidArgumentError

_REMAINDERS = ("drop", "pad")


@dataclass(frozen=True)
class Division:
    """What is left of an epoch, divided among the ranks of one world.

    In each step rank r takes the r-th of `size` runs of `batch` elements in a row. What is left after the last whole
    step is divided evenly, too: the last step has smaller batches, of the same size on all ranks.

    Attributes:
        total: how many elements the epoch has.
        done: how many of them, from its beginning, all ranks together have taken in earlier worlds.
        batch: how many elements one rank takes in one step.
        rank: of this process.
        size: how many ranks there are.
        pad: the last step takes elements from the epoch's beginning again, so that none is left out; else up to
            size - 1 elements are.
    """

    total: int
    done: int
    batch: int
    rank: int
    size: int
    pad: bool = False

    @property
    def _whole(self) -> int:
        """How many steps have whole batches."""
        return (self.total - self.done) // (self.size * self.batch)

    @property
    def _last(self) -> int:
        """How many elements each rank takes in the step after these; 0: there is none."""
        left = (self.total - self.done) % (self.size * self.batch)
        return -(-left // self.size) if self.pad else left // self.size

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return self._whole + (self._last > 0)

    def after(self, steps: int) -> int:
        """How many elements of the epoch are done, by all ranks and in all worlds, after so many of these steps. What
        the last step leaves out counts as done."""
        return self.total if steps >= self.steps else self.done + steps * self.size * self.batch

    def places(self) -> Any:
        """The places of this rank's elements in the epoch's order, from step to step: int64[n]. Each step has `batch`
        of them, the last one may have fewer."""
        import numpy as np

        stride = self.size * self.batch
        starts = self.done + stride * np.arange(self._whole, dtype=np.int64) + self.rank * self.batch
        whole = starts[:, np.newaxis] + np.arange(self.batch, dtype=np.int64)
        begin = self.done + stride * self._whole + self.rank * self._last
        last = (begin + np.arange(self._last, dtype=np.int64)) % max(self.total, 1)
        return np.concatenate([whole.reshape(-1), last])


def order_of(total: int, shuffle: bool, seed: int, epoch: int) -> Any:
    """The order of an epoch's elements: int64[total], the same on all ranks."""
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(total) if shuffle else np.arange(total, dtype=np.int64)


class ElasticSampler:
    """The indices that this rank takes, batch by batch, whatever ranks come and go: in one epoch the ranks together
    take each index once.

    It is a value of a state, and holds a few numbers only::

        state = tfc.elastic.KerasState(model, sampler=ElasticSampler(len(x), batch_size=32))

        @tfc.elastic.run
        def train(state):
            while state.sampler.epoch < 10:
                for indices in state.sampler:
                    step(x[indices], y[indices])
                    state.commit()

    A batch counts as done once it is handed out, so the commit after its step includes it. When a rank is lost, the
    batches since the last commit are handed out again, divided among the ranks that are left. Take the sampler from the
    state each time: after a change it is another object. It must not be read ahead of the steps, as a prefetch would.

    Args:
        data: how many elements there are, or what has a length.
        batch_size: how many indices one rank takes in one step.
        shuffle: each epoch in another random order.
        seed: of the orders; the same on all ranks.
        remainder: what happens with elements that do not divide evenly at the end of an epoch: "drop" leaves out up to
            size - 1 of them, "pad" gives some indices a second time.

    Attributes:
        epoch: how many epochs are done.
        done: how many elements of this epoch all ranks together have taken.

    Raises:
        InvalidArgumentError: an argument is not as described.
    """

    def __init__(
        self, data: int | Sized, batch_size: int = 1, shuffle: bool = True, seed: int = 0, remainder: str = "drop"
    ) -> None:
        total = data if isinstance(data, int) else len(data)
        if total < 1:
            raise InvalidArgumentError(f"data: expected one element or more, got {total}")
        if batch_size < 1:
            raise InvalidArgumentError(f"batch_size: expected 1 or more, got {batch_size}")
        if seed < 0:
            raise InvalidArgumentError(f"seed: expected 0 or more, got {seed}")
        if remainder not in _REMAINDERS:
            raise InvalidArgumentError(f"remainder: expected one of {', '.join(_REMAINDERS)}, got {remainder!r}")
        self._total, self._batch, self._shuffle, self._seed = total, batch_size, shuffle, seed
        self._pad = remainder == "pad"
        self.epoch = 0
        self.done = 0

    def __len__(self) -> int:
        """How many batches are left of this epoch in the present world."""
        return self._division().steps

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this epoch: int64 arrays. At the end the next epoch begins.

        Raises:
            InvalidArgumentError: there are fewer elements than ranks.
        """
        division = self._division()
        if division.steps == 0 and self.done == 0:
            raise InvalidArgumentError(f"data: its {self._total} elements are not enough for {division.size} ranks")
        own = order_of(self._total, self._shuffle, self._seed, self.epoch)[division.places()]
        for step in range(division.steps):
            self.done = division.after(step + 1)
            yield own[step * self._batch : (step + 1) * self._batch]
        self.epoch += 1
        self.done = 0

    def _division(self) -> Division:
        return Division(self._total, self.done, self._batch, runtime.rank(), runtime.size(), self._pad)
