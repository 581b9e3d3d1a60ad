"""``evaluate`` by all ranks in an elastic job, one of which is killed meanwhile: see the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.kill]
BATCHES = 11


def run(directory: Path, metric: str, ranks: int, *fault: int) -> tuple[list[dict[str, object]], dict[int, list[int]]]:
    """The ends of the ranks that are left, and by task the batches that were evaluated after epoch 1."""
    job = Path(__file__).with_name("job_elastic_evaluate.py")
    run_job(job, ranks, str(directory), metric, *map(str, fault), options=("--min-np", "1"))
    ends = [json.loads(one.read_text()) for one in directory.glob("end-*")]
    files = {int(one.stem.partition("-")[2]): one for one in directory.glob("batches-*")}
    lines = {task: [json.loads(line) for line in one.read_text().splitlines()] for task, one in files.items()}
    return ends, {task: [place for epoch, place in some if epoch == 1] for task, some in lines.items()}


@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.elastic)])
def test_others_evaluate_the_lost_ranks_part(tmp_path: Path, ranks: int) -> None:
    ends, batches = run(tmp_path, "mae", ranks, 1, 1, 2)
    assert ends
    assert batches.pop(1) == [1, 1 + ranks]
    assert sorted(place for some in batches.values() for place in some) == list(range(BATCHES))
    for end in ends:
        for found, alone in end["results"]:  # type: ignore[attr-defined]
            assert found == pytest.approx(alone, rel=1e-6)
    assert [0, 1, 2] in [end["epochs"] for end in ends]  # none was trained twice


@pytest.mark.elastic
def test_what_does_not_merge_is_evaluated_again(tmp_path: Path) -> None:
    ends, batches = run(tmp_path, "last", 3, 1, 1, 2)
    assert ends
    del batches[1]
    assert {place for some in batches.values() for place in some} == set(range(BATCHES))
    assert sum(map(len, batches.values())) > BATCHES
    for end in ends:
        for found, alone in end["results"]:  # type: ignore[attr-defined]
            assert found == pytest.approx(alone, rel=1e-6)
