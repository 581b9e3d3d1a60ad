"""``fit`` with Elastic: what it takes for data and how it divides them, and what it does in a world of one rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from fake_world import fake_world

import tfcollective.keras as tfk
from tfcollective._base.errors import InvalidArgumentError, UnsupportedError
from tfcollective._runtime.communicator import Sum
from tfcollective.keras._elastic_data import source_of
from tfcollective.keras._global_batch import ShareWeight
from tfcollective.tensorflow._dataset_order import is_shard, reshuffles, seeds_of

pytestmark = pytest.mark.tensorflow
X = np.arange(46, dtype=np.float32).reshape(23, 2)
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    tf.random.set_seed(None)
    tfk.init()
    yield
    tfk.shutdown()


def source(x: Any = X, y: Any = Y, seed: int = 0, global_batch: int = 0, **given: Any) -> Any:
    names = ("sample_weight", "batch_size", "steps_per_epoch", "validation_split", "validation_data")
    return source_of({"x": x, "y": y, "shuffle": True, **dict.fromkeys(names), **given}, seed, global_batch)


def rows(part: Any) -> list[list[int]]:
    """The numbers of the rows, batch by batch."""
    return [(element[0].numpy()[:, 0] / 2).astype(int).tolist() for element in part.dataset]


def parts(of: Any, size: int, done: int = 0, epoch: int = 0) -> list[Any]:
    return [of.part(epoch, done, rank, size) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_take_equally_many_rows_each_once(size: int) -> None:
    taken = parts(source(batch_size=4), size)
    assert {len(rows(part)) for part in taken} == {part.steps for part in taken}
    shapes = [[len(batch) for batch in rows(part)] for part in taken]
    assert all(shape == shapes[0] for shape in shapes)
    everything = [row for part in taken for batch in rows(part) for row in batch]
    assert len(set(everything)) == len(everything) > 23 - size


def test_rows_are_shuffled_alike_on_all_ranks() -> None:
    first = rows(source(batch_size=4).part(0, 0, 0, 1))
    assert first == rows(source(batch_size=4).part(0, 0, 0, 1))
    assert first != rows(source(batch_size=4).part(1, 0, 0, 1))
    assert first != rows(source(batch_size=4, seed=1).part(0, 0, 0, 1))
    assert rows(source(batch_size=23, shuffle=False).part(1, 0, 0, 1)) == [list(range(23))]


def test_what_is_done_is_not_taken_again() -> None:
    of = source(batch_size=4)
    before = [rows(part)[0] for part in parts(of, 3)]
    position = of.part(0, 0, 0, 3).division.after(1)
    after = [batch for part in parts(of, 2, position) for batch in rows(part)]
    everything = [row for batch in before + after for row in batch]
    assert len(set(everything)) == len(everything) >= 22


def test_batches_of_all_worlds_have_one_type() -> None:
    of = source(batch_size=4)
    assert len({of.part(0, done, 0, size).dataset.element_spec for size, done in ((1, 0), (3, 0), (2, 12))}) == 1


def test_nested_arrays_and_weights_are_accepted() -> None:
    of = source({"a": X, "b": [X, X.astype(np.float64)]}, Y, sample_weight=np.ones(23), batch_size=23, shuffle=False)
    ((x, y, weight),) = list(of.part(0, 0, 0, 1).dataset)
    assert x["b"][1].dtype == tf.float32
    assert np.array_equal(x["a"], X)
    assert np.array_equal(y, Y)
    assert weight.shape == (23,)
    ((alone,),) = list(source(X, None, batch_size=23).part(0, 0, 0, 1).dataset)
    assert alone.shape == (23, 2)


def test_batches_of_a_dataset_are_divided() -> None:
    whole = tf.data.Dataset.from_tensor_slices((X, Y)).batch(3)
    of = source(whole, None)
    assert [rows(part) for part in parts(of, 3)] == [
        [[0, 1, 2], [9, 10, 11]],
        [[3, 4, 5], [12, 13, 14]],
        [[6, 7, 8], [15, 16, 17]],
    ]
    assert [rows(part) for part in parts(of, 2, 6)] == [[[18, 19, 20]], [[21, 22]]]


def test_more_ranks_than_batches_take_one_step() -> None:
    whole = tf.data.Dataset.from_tensor_slices((X, Y)).batch(3)
    taken = parts(source(whole, None), 3, 6)
    assert [(part.steps, rows(part)) for part in taken] == [(1, [[18, 19, 20]]), (1, [[21, 22]]), (1, [[0, 1, 2]])]
    few = parts(source(batch_size=4, shuffle=False), 3, 21)
    assert [rows(part) for part in few] == [[[21]], [[22]], [[0]]]


@pytest.mark.parametrize("dataset", [False, True])
def test_ranks_take_shares_of_a_global_batch(dataset: bool) -> None:
    of = source(DATA, None, global_batch=8) if dataset else source(global_batch=8, shuffle=False)
    taken = parts(of, 3)
    assert [rows(part) for part in taken] == [
        [[0, 1, 2], [8, 9, 10], [16, 17, 18]],
        [[3, 4, 5], [11, 12, 13], [19, 20]],
        [[6, 7], [14, 15], [21, 22]],
    ]
    assert [part.division.weight(0) for part in taken] == [9 / 8, 9 / 8, 6 / 8]
    assert [part.division.weight(2) for part in taken] == [9 / 7, 6 / 7, 6 / 7]
    assert [rows(part) for part in parts(of, 2, 8)] == [
        [[8, 9, 10, 11], [16, 17, 18, 19]],
        [[12, 13, 14, 15], [20, 21, 22]],
    ]
    assert [rows(part) for part in parts(of, 3, 22)] == [[[22]], [[0]], [[1]]]
    specs = {part.dataset.element_spec for part in (*taken, *parts(of, 2, 8), *parts(of, 1))}
    assert len(specs) == 1
    assert next(iter(specs))[0].shape.as_list() == [None, 2]


def test_a_function_gives_each_epoch_its_order() -> None:
    whole = tf.data.Dataset.from_tensor_slices((X, Y))
    of = source(lambda epoch: whole.shuffle(23, seed=epoch, reshuffle_each_iteration=False).batch(3), None)
    assert rows(of.part(0, 0, 0, 2)) == rows(of.part(0, 0, 0, 2)) != rows(of.part(1, 0, 0, 2))


class Batches(tf.keras.utils.Sequence):
    def __init__(self, first: int = 0, size: int = 3) -> None:
        super().__init__()
        self.first, self.size = first, size

    def __len__(self) -> int:
        return math.ceil(len(X) / self.size)

    def __getitem__(self, place: int) -> Any:
        begin = place * self.size
        return X[begin : begin + self.size] + 2 * self.first, Y[begin : begin + self.size]


class Shuffled(Batches):
    def on_epoch_end(self) -> None:
        self.first += 1


def numbers(part: Any) -> list[list[int]]:
    return [(part.dataset[step][0][:, 0] / 2).astype(int).tolist() for step in range(part.steps)]


def test_batches_of_a_sequence_are_divided() -> None:
    of = source(Batches(), None, shuffle=False)
    assert [numbers(part) for part in parts(of, 3)] == [
        [[0, 1, 2], [9, 10, 11]],
        [[3, 4, 5], [12, 13, 14]],
        [[6, 7, 8], [15, 16, 17]],
    ]
    assert [numbers(part) for part in parts(of, 2, 6)] == [[[18, 19, 20]], [[21, 22]]]
    shuffled = source(Batches(), None)
    assert numbers(shuffled.part(0, 0, 0, 1)) == numbers(shuffled.part(0, 0, 0, 1)) != numbers(of.part(0, 0, 0, 1))
    assert numbers(shuffled.part(0, 0, 0, 1)) != numbers(shuffled.part(1, 0, 0, 1))
    by_epoch = source(lambda epoch: Shuffled(epoch), None, shuffle=False)
    assert numbers(by_epoch.part(5, 0, 0, 2))[0] == [5, 6, 7]


def test_alone_a_sequence_trains_as_without_it() -> None:
    given = {"epochs": 2, "shuffle": False, "verbose": 0, "validation_data": Batches()}
    expected = model().fit(Batches(), **given).history
    assert model().fit(Batches(), callbacks=[tfk.Elastic()], **given).history == expected


DATA = tf.data.Dataset.from_tensor_slices((X, Y))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"steps_per_epoch": 3}, UnsupportedError, "steps_per_epoch: with Elastic"),
        ({"x": iter([X]), "y": None}, UnsupportedError, "x: Elastic divides arrays.*not list_iterator"),
        ({"x": None, "y": None}, UnsupportedError, "not NoneType"),
        ({"validation_split": 0.5}, UnsupportedError, "validation_split: with Elastic"),
        ({"y": Y[:7]}, InvalidArgumentError, r"the same number of rows, got \[7, 23\]"),
        ({"x": X[:0], "y": Y[:0]}, InvalidArgumentError, "it has no rows"),
        ({"x": [1.0, 2.0]}, UnsupportedError, "got float"),
        ({"x": tf.ragged.constant([[1], [1, 2]])}, UnsupportedError, "got RaggedTensor"),
        ({"x": DATA}, InvalidArgumentError, "y: x is a tf.data.Dataset"),
        ({"x": Batches()}, InvalidArgumentError, "y: x is a Batches, which has to have it"),
        ({"x": Shuffled(), "y": None}, UnsupportedError, "Shuffled has an on_epoch_end, .* a function"),
        ({"x": Batches(), "y": None, "global_batch": 8}, UnsupportedError, "global_batch of Elastic divides rows"),
        ({"batch_size": 4, "global_batch": 8}, InvalidArgumentError, "batch_size: global_batch of Elastic says"),
        ({"x": DATA, "y": None, "batch_size": 4}, InvalidArgumentError, "batch_size: x is a tf.data.Dataset"),
    ],
)
def test_what_cannot_be_divided_is_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        source(**given)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (DATA.repeat(), UnsupportedError, "leave out repeat"),
        (DATA.filter(lambda x, y: x[0] > 3), UnsupportedError, "assert_cardinality"),
        (DATA.shuffle(5), InvalidArgumentError, "without a seed"),
        (DATA.shuffle(5, seed=3).batch(3), InvalidArgumentError, "with reshuffle_each_iteration"),
        (DATA.shard(2, 0).batch(3), InvalidArgumentError, "one rank's part already"),
        (DATA.take(2), InvalidArgumentError, "its 2 elements are not enough for 3 ranks"),
        (lambda epoch: [X], InvalidArgumentError, "its function has to give a tf.data.Dataset, it gave list"),
    ],
)
def test_a_dataset_whose_elements_may_differ_is_refused(x: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        source(x, None).part(0, 0, 0, 3)


def test_the_pipeline_tells_a_datasets_order() -> None:
    assert reshuffles(DATA.shuffle(5, seed=3).map(lambda x, y: x).batch(2))
    assert reshuffles(tf.data.Dataset.range(3).flat_map(lambda _: DATA.shuffle(5, seed=3)))
    assert not reshuffles(DATA.shuffle(5, seed=3, reshuffle_each_iteration=False))
    assert is_shard(DATA.shard(2, 1).batch(2))
    assert not is_shard(DATA.batch(2))
    assert seeds_of(DATA.shuffle(5, seed=3)) == seeds_of(DATA.shuffle(5, seed=3)) != seeds_of(DATA.shuffle(5, seed=4))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (DATA.shuffle(5).batch(3), InvalidArgumentError, "validation_data: its elements.*Leave the shuffle out"),
        (DATA.shard(2, 0).batch(3), InvalidArgumentError, "validation_data: it is one rank's part already"),
        (iter([(X, Y)]), UnsupportedError, "validation_data: Elastic divides arrays.*not list_iterator"),
    ],
)
def test_a_validation_that_cannot_be_divided(data: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        model().fit(X, Y, verbose=0, validation_data=data, callbacks=[tfk.Elastic()])


def test_validations_come_when_they_are_due() -> None:
    given = {"epochs": 4, "verbose": 0, "shuffle": False, "validation_data": DATA.batch(5), "validation_steps": 3}
    for frequency in (2, [1, 4]):
        expected = model().fit(X, Y, validation_freq=frequency, **given).history
        assert len(expected["val_loss"]) == 2
        assert model().fit(X, Y, validation_freq=frequency, callbacks=[tfk.Elastic()], **given).history == expected


def test_fingerprints_tell_data_apart() -> None:
    whole = DATA.batch(3)
    shuffled = [DATA.shuffle(5, seed=seed, reshuffle_each_iteration=False) for seed in (3, 4)]
    many = [source(), source(X[:20], Y[:20]), source(X + 1), source(X.astype(np.int32))]
    many += [source(x, None) for x in (whole, whole.take(3), *shuffled)]
    prints = [one.fingerprint() for one in many]
    assert len(set(prints)) == len(prints)
    assert source().fingerprint() == prints[0]


def model(**options: Any) -> Any:
    made = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")])
    made.compile(tf.keras.optimizers.SGD(1e-4, momentum=0.9, **options), loss="mse", metrics=["mae"])
    return made


@pytest.mark.parametrize("options", [{}, {"use_ema": True, "ema_momentum": 0.5}])
def test_alone_it_trains_as_without_it(options: dict[str, Any]) -> None:
    given = {"batch_size": 4, "epochs": 3, "shuffle": False, "verbose": 0, "validation_data": (X[:4], Y[:4])}
    plain, elastic = model(**options), model(**options)
    expected = plain.fit(X, Y, **given)
    found = elastic.fit(X, Y, callbacks=[tfk.Elastic(commit_every=2)], **given)
    assert found.history == expected.history
    assert found.epoch == expected.epoch == [0, 1, 2]
    for one, other in zip(plain.get_weights(), elastic.get_weights(), strict=True):
        assert np.array_equal(one, other)
    assert elastic.history is found


class Calls(tf.keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.seen.append(("begin", self.params["epochs"], self.params["steps"]))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.seen.append(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen.append((batch, sorted(logs or {})))

    def on_train_end(self, logs: Any = None) -> None:
        self.seen.append("end")


def test_callbacks_see_one_training() -> None:
    plain, elastic = Calls(), Calls()
    given = {"batch_size": 12, "epochs": 4, "initial_epoch": 1, "verbose": 0}
    model().fit(X, Y, callbacks=[plain], **given)
    model().fit(X, Y, callbacks=[tfk.Elastic(), elastic], **given)
    assert elastic.seen == plain.seen


def test_a_callback_ends_training() -> None:
    class Stop(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    assert model().fit(X, Y, epochs=9, verbose=0, callbacks=[Stop(), tfk.Elastic()]).epoch == [0, 1]


def test_a_model_is_built_from_the_data() -> None:
    made = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    made.compile("sgd", loss="mse")
    made.fit(DATA.batch(5), epochs=1, verbose=0, callbacks=[tfk.Elastic()])
    assert made.built


def test_callbacks_that_do_not_go_with_it(tmp_path: Any) -> None:
    both = [tfk.Elastic(), tfk.BackupAndRestore(tmp_path)]
    with pytest.raises(UnsupportedError, match="BackupAndRestore counts the batches of a fixed number of ranks"):
        model().fit(X, Y, verbose=0, callbacks=both)
    with pytest.raises(UnsupportedError, match="pass a list of callbacks"):
        model().fit(X, Y, verbose=0, callbacks=tf.keras.callbacks.CallbackList([tfk.Elastic()]))


def test_an_additional_optimizer_has_to_be_built() -> None:
    made = model()
    made.second = tf.keras.optimizers.Adam()
    with pytest.raises(InvalidArgumentError, match="second: this optimizer is not built yet"):
        made.fit(X, Y, verbose=0, callbacks=[tfk.Elastic()])
    made.second.build(made.trainable_variables)
    made.fit(X, Y, verbose=0, callbacks=[tfk.Elastic()])


def test_another_fit_than_keras_s_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"this fit is not that of tf\.keras\.Model"):
        tfk.Elastic().on_train_begin()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"commit_every": 0}, "commit_every: expected a number of batches above 0, got 0"),
        ({"commit_every": True}, "got True"),
        ({"seed": -1}, "seed: expected 0 or more, got -1"),
        ({"global_batch": 0}, "global_batch: expected a number above 0, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        tfk.Elastic(**arguments)


def test_a_second_elastic_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfcollective.keras._elastic_fit._begun", False)
    given = {"verbose": 0, "callbacks": [tfk.Elastic()]}
    with fake_world(1, elastic=True):
        model().fit(X, Y, **given)
        with pytest.raises(UnsupportedError, match="this program has called fit with it before"):
            model().fit(X, Y, **given)


def test_a_global_batch_is_of_rows() -> None:
    for batches in (DATA.batch(3), DATA.batch(3).map(lambda x, y: (x, y)).prefetch(1), DATA.padded_batch(3)):
        with pytest.raises(InvalidArgumentError, match="its elements are rows"):
            source(batches, None, global_batch=8).part(0, 0, 0, 2)
    unbatched = DATA.batch(3).unbatch().apply(tf.data.experimental.assert_cardinality(23))
    assert source(unbatched, None, global_batch=8).part(0, 0, 0, 2).steps == 3
    with pytest.raises(InvalidArgumentError, match="global_batch: 2 elements are not enough for 3 ranks"):
        source(global_batch=2).part(0, 0, 0, 3)


def test_alone_a_global_batch_is_a_batch() -> None:
    plain, elastic = model(), model()
    given = {"epochs": 2, "shuffle": False, "verbose": 0}
    expected = plain.fit(X, Y, batch_size=4, **given)
    assert elastic.fit(X, Y, callbacks=[tfk.Elastic(global_batch=4)], **given).history == expected.history
    for one, other in zip(plain.get_weights(), elastic.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def distributed(optimizer: Any = None, loss: Any = "mse", **options: Any) -> Any:
    made = model()
    made.compile(tfk.DistributedOptimizer(optimizer or tf.keras.optimizers.SGD(0.5), **options), loss=loss)
    return made


def test_gradients_count_by_the_share_without_another_trace() -> None:
    with fake_world(3, elastic=True):
        made = distributed()
        made.fit(X[:4], Y[:4], verbose=0)  # traced without a weight
        weight = ShareWeight(made)
        moved = []
        for value in (1.0, 0.5):
            made.set_weights([np.ones((2, 1)), np.zeros(1)])
            weight.assign(value)
            made.fit(X[:4], Y[:4] + 1.0, verbose=0)
            moved.append(
                [after - before for after, before in zip(made.get_weights(), ([[1.0], [1.0]], [0.0]), strict=True)]
            )
            step = made.train_function
            assert step is not None
            assert ShareWeight(made) is not weight
            assert made.train_function is step
        for whole, half in zip(*moved, strict=True):
            assert np.abs(whole).min() > 0
            np.testing.assert_allclose(half, whole / 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"op": Sum}, "optimizer: with global_batch of Elastic its gradients are averaged"),
        ({"backward_passes_per_step": 2}, "leave out backward_passes_per_step"),
        ({"loss": tf.keras.losses.MeanSquaredError(reduction="sum")}, "not reduction='sum'"),
    ],
)
def test_options_without_meaning_for_shares_are_refused(options: dict[str, Any], message: str) -> None:
    with fake_world(2), pytest.raises(UnsupportedError, match=message):
        ShareWeight(distributed(**options))


def test_global_batches_need_distributed_optimizers() -> None:
    with fake_world(2):
        with pytest.raises(
            UnsupportedError, match="optimizer: global_batch of Elastic weights the gradients in a Dist"
        ):
            ShareWeight(model())
        many = model()
        many.compile(tfk.DistributedOptimizer(tf.keras.optimizers.SGD()), loss="mse", steps_per_execution=2)
        with pytest.raises(UnsupportedError, match="steps_per_execution: with global_batch"):
            ShareWeight(many)
