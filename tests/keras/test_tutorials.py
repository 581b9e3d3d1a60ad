"""The scripts of examples/unmodified, on one process and on two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from jobs import run_job
from time_limits import within

pytestmark = [pytest.mark.tensorflow, pytest.mark.multiprocess, pytest.mark.long]
JOB = Path(__file__).with_name("job_tutorials.py")
SCRIPTS = sorted((Path(__file__).parents[2] / "examples" / "unmodified").glob("*.py"))
DIVIDED = ("--data-parallel",)


def saved(folder: Path, rank: int) -> dict[str, np.ndarray]:
    with np.load(folder / f"{rank}.npz") as numbers:
        return dict(numbers)


def test_tutorials_give_the_numbers_of_one_process(tmp_path: Path) -> None:
    for name, ranks, options in (("one", 1, ()), ("two", 2, DIVIDED)):
        (tmp_path / name).mkdir()
        run_job(JOB, ranks, str(tmp_path / name), *map(str, SCRIPTS), options=options, whole=True)
    one = saved(tmp_path / "one", 0)
    assert {name.partition("/")[0] for name in one if name.endswith("loss/0")} == {script.stem for script in SCRIPTS}
    for rank in range(2):
        two = saved(tmp_path / "two", rank)
        assert two.keys() == one.keys()
        for name, numbers in one.items():
            np.testing.assert_allclose(two[name], numbers, rtol=2e-4, atol=2e-5, err_msg=f"{name} of rank {rank}")


def test_a_tutorial_on_the_command_line() -> None:
    script = SCRIPTS[0].with_name("recommender.py")
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=within(100))
    result = alone.stdout.splitlines()[-1]
    assert "may like" in result
    assert run_job(script, 2, options=DIVIDED).stdout.count(result) == 2
