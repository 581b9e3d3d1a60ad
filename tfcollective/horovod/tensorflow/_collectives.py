"""The collectives with the signatures that they have in ``horovod.tensorflow``; Keras's module has others."""

from __future__ import annotations

import tfcollective.tensorflow as tfc
from tfcollective.horovod._signatures import with_signature

allreduce = with_signature(
    tfc.allreduce,
    "tensor average device_dense device_sparse compression op prescale_factor postscale_factor name process_set"
    " ignore_name_scope",
)
allgather = with_signature(tfc.allgather, "tensor name ignore_name_scope process_set")
broadcast = with_signature(tfc.broadcast, "tensor root_rank name ignore_name_scope process_set")
reducescatter = with_signature(
    tfc.reducescatter,
    "tensor device_dense compression op name process_set ignore_name_scope prescale_factor postscale_factor",
)
grouped_reducescatter = with_signature(
    tfc.grouped_reducescatter,
    "tensors device_dense compression op process_set prescale_factor postscale_factor name",
)
