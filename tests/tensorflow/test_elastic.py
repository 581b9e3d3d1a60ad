"""Models that train on when a rank is lost: with the weights of all, and without another trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.kill]
JOB = Path(__file__).with_name("job_elastic.py")
STEPS = 25
TENSORFLOW = tuple(map(int, tf.__version__.split(".")[:2]))
every_fault = pytest.mark.elastic


def run(directory: Path, *arguments: object, **env: str) -> dict[int, Any]:
    options = ("--min-np", "1")
    done = run_job(JOB, 3, *map(str, (directory, STEPS, *arguments)), options=options, **env)
    assert "the others continued without it" in done.stderr
    found = {int(path.stem.partition("-")[2]): json.loads(path.read_text()) for path in directory.glob("end-*.json")}
    assert len({end["weights"] for end in found.values()}) == 1
    assert {end["traces"] for end in found.values()} == {1}
    assert {end["iterations"] for end in found.values()} == {max(len(end["sizes"]) for end in found.values())}
    return found


@pytest.mark.parametrize(
    ("kind", "victim"), [("dense", 1), *(pytest.param(kind, 0, marks=every_fault) for kind in ("dense", "sparse"))]
)
def test_the_others_train_on(kind: str, victim: int, tmp_path: Path) -> None:
    found = run(tmp_path, kind, victim, 15)
    survivors = [found[task] for task in range(3) if task != victim]
    assert [end["rank"] for end in survivors] == [0, 1]
    for end in survivors:
        assert end["sizes"][:15] == [3] * 15
        assert set(end["sizes"][15:]) == {2}


@every_fault
def test_others_train_on_after_an_early_leave(tmp_path: Path) -> None:
    found = run(tmp_path, "dense", 1, 15, LEAVES="1")
    assert all(set(found[task]["sizes"][15:]) == {2} for task in (0, 2))


@every_fault
def test_a_replacement_trains_with_the_others_state(tmp_path: Path) -> None:
    found = run(tmp_path, "dense", 1, 15, WHOLE="1")
    assert sorted(found) == [0, 2, 3]
    assert found[3]["rank"] == 2
    assert set(found[3]["sizes"]) == {3}
    for task in (0, 2):
        alone = found[task]["sizes"].count(2)
        assert alone > 0
        assert found[task]["sizes"] == [3] * 15 + [2] * alone + found[3]["sizes"]


@pytest.mark.skipif(TENSORFLOW < (2, 21), reason="its XLA cannot communicate")
@pytest.mark.parametrize("whole", [pytest.param("", marks=every_fault), "1"])
def test_a_compiled_step_survives_changes_of_the_world(whole: str, tmp_path: Path) -> None:
    found = run(tmp_path, "compiled", 1, 15, **({"WHOLE": whole} if whole else {}))
    assert set(found[0]["sizes"]) == {2, 3}


@every_fault
def test_process_sets_with_lost_members_are_reformed(tmp_path: Path) -> None:
    found = run(tmp_path, "sets", 2, 15)
    for task in (0, 1):
        ((summed, ranks, ended),) = found[task]["sets"]
        assert (summed, ranks) == (2.0, [0, 1])
        assert "worker:2, of its members, left the job in generation 2" in ended
