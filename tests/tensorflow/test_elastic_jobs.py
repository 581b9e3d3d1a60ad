"""Scripts in the shape of Horovod's elastic examples, whose `import horovod` gives tfcollective: they go on without a
rank that is lost, and take in the one that replaces it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow")

from jobs import run_job

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.kill, pytest.mark.elastic]
JOB = Path(__file__).with_name("job_elastic_loop.py")


def ends_of(job: Path, directory: Path, lost: int) -> dict[int, dict[str, Any]]:
    """What each process of a job of 3 ranks had at the end, by the number of its task."""
    run_job(job, 3, str(directory), str(lost), options=("--horovod-compat", "--min-np", "1"))
    ends = {int(path.stem.partition("-")[2]): json.loads(path.read_text()) for path in directory.glob("end-*.json")}
    survivors = sorted({0, 1, 2} - {lost})
    assert sorted(ends) == [*survivors, 3]
    assert [ends[task]["rank"] for task in sorted(ends)] == [0, 1, 2]
    for task, end in ends.items():
        assert end["resets"] == ([] if task == 3 else [2, 3])
        for name in ("weights", "sizes", "updates"):
            assert end[name] == ends[3][name]
    return ends


@pytest.mark.parametrize("lost", [0, 2])
def test_a_loop(tmp_path: Path, lost: int) -> None:
    for end in ends_of(JOB, tmp_path, lost).values():
        assert end["sizes"] == [3] * 4 + [2] * 4 + [3] * 4
        assert end["updates"] == 1 + 12  # of the first one all go on with that of one rank
        assert end["traced"].count(True) == 1  # no change of the world traces it anew


@pytest.mark.parametrize("lost", [0, 2])
def test_fit(tmp_path: Path, lost: int) -> None:
    for end in ends_of(JOB.with_name("job_elastic_keras.py"), tmp_path, lost).values():
        assert end["sizes"] == [3, 2, 3, 3]
        # The first one, and the second epoch's first two, which it has begun anew. Steps of reset callbacks are none.
        assert end["updates"] == 1 + 8 + 2 + 12 + 8 + 8
    assert (tmp_path / "checkpoint-1.h5").exists() or lost == 0
