"""The timeline of real ranks: one file, all ranks, one clock. A missing part does not fail the job."""

import json
import re
import sys
from pathlib import Path

import pytest
from launching import Run

pytestmark = [pytest.mark.multiprocess]

# Rank 1 begins every operation after rank 0 has: another thread sees that, and says so by a file.
SLOW_RANK = """
import sys, threading, time
from pathlib import Path
import numpy as np, tfcollective as tfc
tfc.init()
world = tfc.get_communicator()
begun = [Path(sys.argv[1], f"begun-{step}") for step in range(5)]
def watch(before):
    for step, file in enumerate(begun):
        while world.info().completed != before + step or not world.info().pending:
            time.sleep(0.001)  # nothing tells other threads when an operation begins
        file.touch()
if tfc.rank() == 0:
    threading.Thread(target=watch, args=[world.info().completed], daemon=True).start()
for step, file in enumerate(begun):
    while tfc.rank() == 1 and not file.exists():
        time.sleep(0.01)  # another process makes the file
    time.sleep(0.1 * tfc.rank())  # longer than the ranks' clocks may seem to differ
    world.allreduce(np.ones(10), name=f"x{step}")
"""


def run_job(*options: str, code: int = 0) -> str:
    with Run(("-np", "2", *options)) as job:
        exit_code, _, err = job.finish(60)
    assert exit_code == code, err
    return err


def operations(path: Path) -> list[dict]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_the_straggler_is_found(tmp_path, transport):
    path = tmp_path / "trace.json"
    program = (sys.executable, "-c", SLOW_RANK, str(tmp_path))
    err = run_job("--transport", transport, "--timeline", str(path), "--", *program)
    events = operations(path)
    assert sorted((e["pid"], e["name"]) for e in events) == [(r, f"x{s}") for r in (0, 1) for s in range(5)]
    assert all(e["args"]["last_rank"] == 1 for e in events)
    row = next(line for line in err.splitlines() if line.startswith("[0]<stderr>:    1 "))
    assert row.split()[7] == "5", row  # came last


def test_a_part_of_a_program(tmp_path):
    path = tmp_path / "part.json"
    program = (
        "import numpy as np, tfcollective as tfc\n"
        "tfc.init(); world = tfc.get_communicator()\n"
        "world.allreduce(np.ones(1), name='before')\n"
        f"tfc.start_timeline({str(path)!r})\n"
        "world.allreduce(np.ones(1), name='inside')\n"
        "tfc.stop_timeline()\n"
        "world.allreduce(np.ones(1), name='after')\n"
    )
    run_job("--", sys.executable, "-c", program)
    assert {event["name"] for event in operations(path)} == {"inside"}


def test_a_killed_rank_loses_only_its_part(tmp_path):
    path = tmp_path / "trace.json"
    program = (
        "import os, signal, numpy as np, tfcollective as tfc\n"
        "tfc.init(); world = tfc.get_communicator()\n"
        "world.allreduce(np.ones(1), name='together')\n"
        "if tfc.rank() == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "world.allreduce(np.ones(1), name='alone')\n"
    )
    err = run_job("--timeline", str(path), "--", sys.executable, "-c", program, code=137)
    # Rank 0 may learn of the death before it starts the operation that rank 1 never joins.
    assert {(0, "together")} <= {(e["pid"], e["name"]) for e in operations(path)} <= {(0, "together"), (0, "alone")}
    assert "rank 1 left nothing for the timeline" in err


def test_an_unwritable_file_fails_before_training(tmp_path):
    program = (sys.executable, "-c", SLOW_RANK, str(tmp_path))
    for name, why in (("no/trace.json", "No such file or directory"), ("", "Is a directory")):
        err = run_job("--timeline", str(tmp_path / name), "--", *program, code=64)
        assert re.search(rf"the timeline cannot be written to {tmp_path}.*{why}", err)
        assert "Traceback" not in err


def test_a_timeline_into_a_directory_fails(tmp_path):
    program = f"import tfcollective as tfc; tfc.init(); tfc.start_timeline({str(tmp_path)!r})"
    assert "the timeline cannot be written to" in run_job("--", sys.executable, "-c", program, code=1)
