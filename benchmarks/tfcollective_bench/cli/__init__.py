"""``tfcollective bench``: all-reduce and training, compared with other libraries."""

from __future__ import annotations

import click

from tfcollective_bench.cli.allreduce import allreduce
from tfcollective_bench.cli.chaos import chaos
from tfcollective_bench.cli.elastic import elastic
from tfcollective_bench.cli.scaling import scaling
from tfcollective_bench.cli.simulate import simulate
from tfcollective_bench.cli.targets import targets
from tfcollective_bench.cli.training import training

__all__ = ["bench"]


@click.group(
    epilog="""\b
Examples:
  tfcollective bench allreduce -np 2 --quick
  tfcollective bench allreduce -np 2,4 --sizes 4,64K,16M --out results
  tfcollective bench training -np 2 --quick
  tfcollective bench scaling --quick
  tfcollective bench simulate --link 1gbit
  tfcollective bench elastic --quick
  tfcollective bench chaos --minutes 5
  tfcollective bench targets --quick"""
)
def bench() -> None:
    """Measures all-reduce and training against other libraries."""


for command in (allreduce, training, scaling, simulate, elastic, chaos, targets):
    bench.add_command(command)
