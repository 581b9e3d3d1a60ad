"""Names of Horovod's that scripts use now and then: what they give, on any TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.horovod.keras as tfk
import tfcollective.horovod.tensorflow as tfc
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError

pytestmark = pytest.mark.tensorflow
keras = tf.keras


def built(kind: type = keras.layers.Dense) -> object:
    layer = kind(1, use_bias=False, kernel_initializer="ones")
    layer.build((None, 2))
    return layer


@pytest.mark.parametrize(("scale", "own"), [(True, 0.5), (False, 1.0)])
def test_a_tape_that_leaves_layers_to_each_rank(scale: bool, own: float) -> None:
    local, shared = built(), built()
    with fake_world() as ops:
        tape = tfc.PartialDistributedGradientTape(
            tf.GradientTape(), op=tfc.Sum, local_layers=local, scale_local_gradients=scale
        )
        with tape:
            loss = tf.reduce_sum(local(tf.ones([1, 2])) + shared(tf.ones([1, 2])))
        got = tape.gradient(loss, [*local.trainable_variables, *shared.trainable_variables])
    np.testing.assert_array_equal(got[0], np.full((2, 1), own))
    np.testing.assert_array_equal(got[1], np.full((2, 1), 2.0))
    assert len(next(iter(ops.signatures.values())).splitlines()) == 1


def test_the_old_arguments_choose_the_new_ones() -> None:
    with fake_world(size=3) as ops:
        assert float(tfc.allreduce(2.0, False)) == 6.0
        assert float(tfc.allreduce(2.0, True, "/gpu:0", op=None)) == 2.0
        with pytest.raises(InvalidArgumentError, match="cannot be combined"):
            tfc.allreduce(2.0, average=True, op=tfc.Sum)
        with pytest.raises(TypeError, match="colour"):
            tfc.allreduce(2.0, colour="red")
        with pytest.raises(UnsupportedError, match="process_sets"):
            tfc.init([0, 1])
        variables = [tf.Variable(1.0), tf.Variable(2.0)]
        with tfc.DistributedGradientTape(tf.GradientTape(), num_groups=2) as tape:
            loss = variables[0] * variables[1]
        tape.gradient(loss, variables)
    assert ops.count("start") == 2


def test_a_tape_tells_local_gradients_from_others() -> None:
    local, shared = tf.Variable(1.0), tf.Variable(1.0)
    with fake_world(), tfc.DistributedGradientTape(tf.GradientTape(), op=tfc.Sum) as tape:
        tape.register_local_source(local)
        ours, everyones = tape.get_local_and_global_gradients(3.0 * local + shared, [shared, local])
    assert [(source is local, float(gradient)) for source, gradient in ours] == [(True, 1.5)]
    assert [(source is shared, float(gradient)) for source, gradient in everyones] == [(True, 2.0)]


def test_the_collectives_of_the_keras_module() -> None:
    with fake_world() as ops:
        assert float(tfk.allreduce(2.0)) == 2.0
        assert float(tfk.allreduce(2.0, "mine", False)) == 4.0
        assert float(tfk.allreduce(2.0, prescale_factor=3.0, op=tfk.Sum)) == 12.0
        np.testing.assert_array_equal(tfk.allgather([1.0, 2.0]), [1.0, 2.0, 1.0, 2.0])
        assert float(tfk.broadcast(5.0, 0, "own")) == 5.0
        with tf.Graph().as_default():
            tf.compat.v1.get_variable("v", initializer=1.0)
            assert tfk.broadcast_global_variables(0).type == "NoOp"
    assert [entry for entry in ops.ran if entry.endswith(("mine", "own"))] == ["allreduce mine", "broadcast own"]
    with fake_world(size=1):
        np.testing.assert_array_equal(tfk.reducescatter([1.0, 2.0], op=tfk.Sum), [1.0, 2.0])


class Halves(tfc.Compressor):
    """A compressor of the user's own."""

    @staticmethod
    def compress(tensor: object) -> tuple:
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: object, ctx: object) -> object:
        return tf.cast(tensor, ctx)


def test_compressors_of_ones_own() -> None:
    with fake_world() as ops:
        for value in (
            tfc.allreduce([1.0, 3.0], op=tfc.Sum, compression=Halves),
            *tfc.grouped_allreduce([tf.constant([1.0, 3.0])], op=tfc.Sum, compression=Halves),
        ):
            assert value.dtype == tf.float32
            np.testing.assert_array_equal(value, [2.0, 6.0])
    assert "float16" in ops.ran[-1]
    wire, context = tfc.Compression.fp16.compress(tf.constant(1.5))
    assert wire.dtype == tf.float16
    assert tfc.Compression.fp16.decompress(wire, context).dtype == tf.float32


class Slow(keras.optimizers.SGD):
    """An optimizer that Keras does not know."""


class Doubled(keras.layers.Layer):
    """A layer that Keras does not know."""

    def call(self, inputs: object) -> object:
        return 2.0 * inputs


def test_a_model_with_custom_classes_stays_distributed(tmp_path: Path) -> None:
    with fake_world():
        made = keras.Sequential([keras.layers.Input((2,)), Doubled(), keras.layers.Dense(1)])
        made.compile(tfk.DistributedOptimizer(Slow(0.25)), "mse")
        made.save(tmp_path / "model.keras")
        loaded = tfk.load_model(
            tmp_path / "model.keras",
            custom_optimizers=[Slow],
            custom_objects={"Doubled": Doubled},
            compression=tfk.Compression.fp16,
        )
        assert isinstance(loaded.optimizer, Slow)
        assert float(tf.convert_to_tensor(loaded.optimizer.learning_rate)) == 0.25
        with pytest.raises(InvalidArgumentError, match="already"):
            tfk.DistributedOptimizer(loaded.optimizer)


def test_what_horovods_pages_give_to_compile() -> None:
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    with fake_world():
        optimizer = tfk.DistributedOptimizer(keras.optimizers.SGD(0.1))
        model.compile(loss="mse", optimizer=optimizer, experimental_run_tf_function=False)
        assert model.optimizer is optimizer


def test_the_variables_of_an_optimizer_may_be_called() -> None:
    with fake_world():
        tfc.DistributedGradientTape(tf.GradientTape())
        for optimizer in (keras.optimizers.Adam(), tfk.DistributedOptimizer(keras.optimizers.Adam())):
            optimizer.build([tf.Variable(1.0)])
            assert len(optimizer.variables()) == len(optimizer.variables) == len(list(optimizer.variables)) >= 3


def test_modules_that_scripts_import_are_under_horovods_name() -> None:
    program = (
        "import horovod\n"
        "import horovod.tensorflow as hvd\n"
        "from horovod.common.process_sets import global_process_set\n"
        "from horovod.tensorflow.compression import Compression\n"
        "from horovod.tensorflow.functions import broadcast_object\n"
        "from horovod.tensorflow.mpi_ops import Average, rank\n"
        "from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization\n"
        "import horovod.keras.elastic\n"
        "from horovod.common.elastic import ObjectState, State\n"
        "from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt\n"
        "from horovod.tensorflow.elastic import TensorFlowKerasState, TensorFlowState, run\n"
        "from horovod.tensorflow.keras.elastic import CommitStateCallback, KerasState\n"
        "assert hvd.SyncBatchNormalization is SyncBatchNormalization\n"
        "assert horovod.keras.elastic.KerasState is KerasState is TensorFlowKerasState\n"
        "assert hvd.elastic.run is run\n"
        "assert issubclass(TensorFlowState, ObjectState) and issubclass(ObjectState, State)\n"
        "assert issubclass(HorovodInternalError, RuntimeError) and HostsUpdatedInterrupt(True).skip_sync\n"
        "hvd.init()\n"
        "assert rank() == 0 and not hvd.mpi_threads_supported()\n"
        "assert horovod.run.__module__.startswith('tfcollective')\n"
    )
    import tfcollective

    packages = Path(tfcollective.__file__).parent / "horovod" / "_alias"
    path = f"import sys; sys.path.insert(0, {str(packages)!r})\n"
    done = subprocess.run([sys.executable, "-c", path + program], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
