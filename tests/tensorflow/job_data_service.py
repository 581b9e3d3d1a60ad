"""A script for Horovod whose data come from a compute service; the file that describes it is the argument."""

import sys

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, tf_data_service

hvd.init()
rank, size = hvd.rank(), hvd.size()
config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
numbers = tf.data.Dataset.range(20)
if config.dispatcher_side == "compute":
    dataset = numbers.send_to_data_service(config, rank, size, reuse_dataset=True)
    mine = list(dataset.as_numpy_iterator())
    everyone = [number for part in hvd.allgather_object(mine) for number in part]
    assert sorted(everyone) == list(range(20)), everyone  # one pass for all ranks

    turns = numbers.repeat().send_to_data_service(config, rank, size, reuse_dataset=True, round_robin=True)
    assert len(list(turns.take(5).as_numpy_iterator())) == 5
else:
    with tf_data_service(config, rank) as address:
        distribute = tf.data.experimental.service.distribute("distributed_epoch", address)
        mine = list(numbers.apply(distribute).as_numpy_iterator())
        assert sorted(mine) == list(range(20)), mine  # a dispatcher for each rank, and a pass
        hvd.allreduce(tf.constant(0))
if rank == 0:
    config.compute_client(verbose=2).shutdown()
print("ok", flush=True)
