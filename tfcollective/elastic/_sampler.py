"""Divides the elements of the data among the ranks, again whenever the world changes."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any

from tfcollective import _runtime as runtime
from tfcollective._base.errors import InvalidArgumentError

_REMAINDERS = ("drop", "pad")


@dataclass(frozen=True)
class Division:
    """The rest of an epoch, divided among the ranks of one world.

    In each step rank r takes the r-th of `size` runs of elements in a row: `batch` each, or its share of a
    `global_batch`. What is left after the last whole step is divided evenly, too: the last step has smaller batches.
    They have the same size on all ranks, but the shares of a global batch, of which the first ranks may have one
    element more.

    Attributes:
        total: how many elements the epoch has.
        done: how many of them, from its beginning, all ranks together have taken in earlier worlds.
        batch: how many elements one rank takes in one step, without `global_batch`.
        rank: of this process.
        size: how many ranks there are.
        pad: the last step takes elements from the epoch's beginning again, so that none is left out; else up to
            size - 1 elements are.
        global_batch: how many elements all ranks together take in one step, at least `size`; 0: `batch` each.
    """

    total: int
    done: int
    batch: int
    rank: int
    size: int
    pad: bool = False
    global_batch: int = 0

    @property
    def step(self) -> int:
        """The number of elements that all ranks together take in a whole step."""
        return self.global_batch or self.size * self.batch

    @property
    def whole(self) -> int:
        """The number of whole steps."""
        return (self.total - self.done) // self.step

    @property
    def last(self) -> int:
        """The number of elements that all ranks together take in the step after these; 0: no such step."""
        left = (self.total - self.done) % self.step
        if self.global_batch and left >= self.size:
            return left
        return (-(-left // self.size) if self.pad else left // self.size) * self.size

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.whole + (self.last > 0)

    @property
    def share(self) -> int:
        """The number of elements that this rank takes in a whole step."""
        return len(self.own(self.step))

    def own(self, count: int) -> range:
        """Returns the places of this rank's elements among the `count` of a step."""
        each, more = divmod(count, self.size)
        begin = each * self.rank + min(self.rank, more)
        return range(begin, begin + each + (self.rank < more))

    def weight(self, step: int) -> float:
        """Returns the weight of this rank's mean in the average over ranks: 1 where all have equally many elements. So
        the average is the mean over all elements.
        """
        count = self.step if step < self.whole else self.last
        return len(self.own(count)) * self.size / count

    def after(self, steps: int) -> int:
        """Returns the number of elements of the epoch that are done, by all ranks and in all worlds, after so many of
        these steps. What the last step leaves out counts as done.
        """
        return self.total if steps >= self.steps else self.done + steps * self.step

    def places(self) -> Any:
        """The places of this rank's elements in the epoch's order, from step to step: int64[n]. Each step has `share`
        of them, the last one may have fewer."""
        import numpy as np

        starts = self.done + self.step * np.arange(self.whole, dtype=np.int64)
        whole = starts[:, np.newaxis] + np.array(self.own(self.step), np.int64)
        last = self.done + self.step * self.whole + np.array(self.own(self.last), np.int64)
        return np.concatenate([whole.reshape(-1), last % max(self.total, 1)])


def order_of(total: int, shuffle: bool, seed: int, epoch: int) -> Any:
    """The order of an epoch's elements: int64[total], the same on all ranks."""
    import numpy as np

    return np.random.default_rng([seed, epoch]).permutation(total) if shuffle else np.arange(total, dtype=np.int64)


def check_global_batch(global_batch: object) -> None:
    """Raises InvalidArgumentError if this is no number above 0."""
    if isinstance(global_batch, bool) or not isinstance(global_batch, int) or global_batch < 1:
        raise InvalidArgumentError(f"global_batch: expected a number above 0, got {global_batch!r}")


def check_share(global_batch: int, size: int) -> None:
    """Raises InvalidArgumentError if a global batch (0: there is none) has less than one element for each rank."""
    if 0 < global_batch < size:
        raise InvalidArgumentError(
            f"global_batch: {global_batch} elements are not enough for {size} ranks: each takes one or more in a step"
        )


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
        global_batch: how many indices all ranks together take in one step, instead of `batch_size`; the ranks' shares
            differ by one where it does not divide. A loss times `weight` then has the gradient, averaged over the
            ranks, of the mean over the global batch, whatever the number of ranks.

    Attributes:
        epoch: how many epochs are done.
        done: how many elements of this epoch all ranks together have taken.
        weight: what this rank's mean over the batch that was handed out last counts for in the average over the ranks
            (float32, an array without dimensions): other than 1 only where the shares of a global batch differ.

    Raises:
        InvalidArgumentError: an argument is not as described.
    """

    def __init__(
        self,
        data: int | Sized,
        batch_size: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        remainder: str = "drop",
        global_batch: int | None = None,
    ) -> None:
        import numpy as np

        total = data if isinstance(data, int) else len(data)
        if total < 1:
            raise InvalidArgumentError(f"data: expected one element or more, got {total}")
        if batch_size < 1:
            raise InvalidArgumentError(f"batch_size: expected 1 or more, got {batch_size}")
        if seed < 0:
            raise InvalidArgumentError(f"seed: expected 0 or more, got {seed}")
        if remainder not in _REMAINDERS:
            raise InvalidArgumentError(f"remainder: expected one of {', '.join(_REMAINDERS)}, got {remainder!r}")
        if global_batch is not None:
            check_global_batch(global_batch)
            if batch_size != 1:
                raise InvalidArgumentError("batch_size: global_batch says how many indices a step takes: leave it out")
        self._total, self._batch, self._shuffle, self._seed = total, batch_size, shuffle, seed
        self._pad = remainder == "pad"
        self._global_batch = global_batch or 0
        self.weight = np.array(1.0, np.float32)
        self.epoch = 0
        self.done = 0

    def __len__(self) -> int:
        """Returns the number of batches left of this epoch in the present world."""
        return self._division().steps

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of this epoch: int64 arrays. At the end the next epoch begins.

        Raises:
            InvalidArgumentError: there are fewer elements than ranks, or a global batch has.
        """
        import numpy as np

        division = self._division()
        if division.steps == 0 and self.done == 0:
            raise InvalidArgumentError(f"data: its {self._total} elements are not enough for {division.size} ranks")
        own = order_of(self._total, self._shuffle, self._seed, self.epoch)[division.places()]
        share = division.share
        for step in range(division.steps):
            self.done = division.after(step + 1)
            self.weight = np.array(division.weight(step), np.float32)
            yield own[step * share : (step + 1) * share]
        self.epoch += 1
        self.done = 0

    def _division(self) -> Division:
        rank, size = runtime.rank(), runtime.size()
        check_share(self._global_batch, size)
        return Division(self._total, self.done, self._batch, rank, size, self._pad, self._global_batch)
