"""``fit`` with Elastic, on real processes of which some are killed: see the job."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.kill]
every_fault = pytest.mark.elastic
ROWS, BATCH, VALIDATED = 230, 10, 97


class Done:
    """What a job has left: `ends` by task, `sizes` and `rows` of the batches by (epoch, batch), and by epoch what was
    `validated`: (task, number of the batch)."""

    def __init__(self, directory: Path, stderr: str) -> None:
        self.stderr = stderr
        self.ends = {int(one.stem.partition("-")[2]): json.loads(one.read_text()) for one in directory.glob("end-*")}
        self.sizes: dict[tuple[int, int], int] = {}
        self.rows: dict[int, Counter[int]] = {}
        self.validated: dict[int, list[tuple[int, int]]] = {}
        for file in directory.glob("validation-*"):
            for epoch, rows in map(json.loads, file.read_text().splitlines()):
                task = int(file.stem.partition("-")[2])
                self.validated.setdefault(epoch, []).append((task, rows[0] // BATCH))
        for file in directory.glob("rows-*"):
            for epoch, batch, size, rows in map(json.loads, file.read_text().splitlines()):
                self.sizes[epoch, batch] = size
                self.rows.setdefault(epoch, Counter()).update(rows)

    def check(self, epochs: int) -> None:
        """All that ended have done all epochs, with equal weights and the same history, and traced nothing anew."""
        assert self.ends
        for name in ("weights", "iterations", "history", "epochs"):
            assert len({json.dumps(end[name]) for end in self.ends.values()}) == 1, name
        for end in self.ends.values():
            assert end["epochs"] == list(range(epochs))
            assert {len(values) for values in end["history"].values()} == {epochs}
            assert end["history"].keys() == {"loss", "mae", "val_loss", "val_mae"}
            assert end["history"]["val_loss"][-1] < end["history"]["val_loss"][0]
            for name, value in end["alone"].items():
                assert end["history"][f"val_{name}"][-1] == pytest.approx(value, rel=1e-5)
            assert len({call[3] for call in end["calls"] if call[0] == "batch"}) == 1
            assert [call[0] for call in end["calls"]].count("train") == 1
            begun = [call[1] for call in end["calls"] if call[0] == "epoch"]
            assert begun == list(range(begun[0], epochs))


def run(directory: Path, kind: str, epochs: int, *faults: str, **env: str) -> Done:
    return run_on(3, directory, kind, epochs, *faults, **env)


def run_on(ranks: int, directory: Path, kind: str, epochs: int, *faults: str, **env: str) -> Done:
    job = Path(__file__).with_name("job_elastic_fit.py")
    directory.mkdir(exist_ok=True)
    done = run_job(job, ranks, str(directory), kind, str(epochs), *faults, options=("--min-np", "1"), **env)
    return Done(directory, done.stderr)


def test_others_continue_in_the_killed_ranks_batch(tmp_path: Path) -> None:
    done = run(tmp_path, "arrays", 3, "begin:1:1:3")
    done.check(3)
    assert {0, 2} <= set(done.ends)
    assert "worker:1" in done.stderr
    assert [done.sizes[1, batch] for batch in range(4)] == [3, 3, 3, 2]
    for epoch, rows in done.rows.items():
        assert set(rows.values()) == {1}, epoch  # nothing twice
        assert len(rows) > ROWS - 3, epoch


@every_fault
@pytest.mark.parametrize("kind", ["dataset", "sequence"])
def test_a_replacement_joins_in_the_middle_of_training(tmp_path: Path, kind: str) -> None:
    done = run(tmp_path, kind, 3, "begin:0:0:3", WHOLE="1:2")
    done.check(3)
    assert set(done.ends) == {1, 2, 3}
    assert [done.ends[task]["rank"] for task in (1, 2, 3)] == [0, 1, 2]
    assert done.ends[3]["calls"][1] == ["epoch", 1]  # its first epoch
    assert all(done.ends[3]["traced alone"])  # before it joined: the others did not wait for that
    assert [done.sizes[1, batch] for batch in range(5)] == [2, 2, 2, 3, 3]
    for epoch, rows in done.rows.items():
        assert set(rows.values()) == {1}, epoch  # nothing twice
        assert len(rows) > ROWS - 3 * BATCH, epoch
    assert done.ends[1]["iterations"] == len(done.sizes)


@every_fault
@pytest.mark.parametrize("phase", ["validation", "epoch"])
def test_a_kill_after_an_epochs_steps_repeats_none(tmp_path: Path, phase: str) -> None:
    done = run(tmp_path, "function", 3, f"{phase}:2:1:0")
    done.check(3)
    calls = [call[:3] for call in done.ends[0]["calls"]]
    assert calls.count(["epoch end", 1]) <= 2
    assert [call for call in calls if call[:2] == ["batch", 1]] == [["batch", 1, step] for step in range(7)]
    assert set(done.rows[1].values()) == {1}
    assert len(done.rows[1]) > ROWS - 3 * BATCH


def test_a_lost_rank_costs_its_part_of_validation(tmp_path: Path) -> None:
    done = run(tmp_path, "arrays", 2, "validation:2:1:1")
    done.check(2)
    assert [place for task, place in done.validated[1] if task == 2] == [2]  # it died in its second batch
    others = [place for task, place in done.validated[1] if task != 2]
    assert sorted(others) == list(range(-(-VALIDATED // BATCH)))
    assert set(done.rows[1].values()) == {1}


@every_fault
def test_a_rank_joins_in_a_validation(tmp_path: Path) -> None:
    done = run(tmp_path, "arrays", 3, "begin:1:0:3", "validation:2:1:1", WHOLE="1:validation")
    done.check(3)
    assert set(done.ends) >= {0, 3}
    assert done.ends[3]["calls"][1] == ["epoch", 1]
    assert not [call for call in done.ends[3]["calls"] if call[:2] == ["batch", 1]]
    others = [(task, place) for task, place in done.validated[1] if task != 2]
    assert sorted(place for _, place in others) == list(range(-(-VALIDATED // BATCH)))
    assert {task for task, _ in others} >= {0, 3}
    assert set(done.rows[1].values()) == {1}


@every_fault
def test_a_kill_after_a_step_repeats_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "arrays", 2, "end:2:0:4")
    done.check(2)
    calls = [call[:3] for call in done.ends[0]["calls"]]
    assert calls.count(["batch", 0, 3]) == 1
    assert calls.count(["batch", 0, 5]) == 1
    # One of the others may have completed that step, and the other have taken its result, but not noted its own rows.
    assert len(done.rows[0]) > ROWS - 3 - BATCH


def weights_of(done: Done) -> list[np.ndarray]:
    end = next(iter(done.ends.values()))
    return [np.frombuffer(bytes.fromhex(one), np.float32) for one in end["weights"]]


@every_fault
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_a_global_batch_survives_a_lost_rank(tmp_path: Path, kind: str) -> None:
    """20 rows a step are 7, 7 and 6, then 10 and 10; the last step of an epoch has 10. No shape is traced anew."""
    done = run(tmp_path / "lost", kind, 2, "begin:1:0:4", GLOBAL_BATCH="20")
    done.check(2)
    assert [done.sizes[0, batch] for batch in range(4)] == [3, 3, 3, 3]
    for rows in done.rows.values():
        assert rows == Counter(range(ROWS))
    for size in (1, 3):
        undisturbed = run_on(size, tmp_path / str(size), kind, 2, GLOBAL_BATCH="20")
        undisturbed.check(2)
        for one, other in zip(weights_of(done), weights_of(undisturbed), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
