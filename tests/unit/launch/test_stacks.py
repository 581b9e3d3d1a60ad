"""How the stacks of a job's processes are shown."""

import json

from tfcollective._base.stacks import Activity, TaskStacks
from tfcollective._base.tasks import TaskKey
from tfcollective._base.tracebacks import Frame
from tfcollective._control.messages import DumpedTask, pack_dump, unpack_dump
from tfcollective._launch.report.stacks import name_tasks, stack_document, stack_lines

REDUCE = (Frame("/train.py", 44, "main", "tape.gradient(x)"), Frame("/keras/opt.py", 1, "apply", "", "keras"))
INPUT = (Frame("/train.py", 41, "main", "next(iterator)"), Frame("/tf/data.py", 2, "next", "", "tensorflow"))
OTHER = (Frame("/lib/threading.py", 9, "run", "", "Python"), Frame("/data.py", 7, "read", "file.read()"))
WAITING, COMPUTING = Activity("S", 1.0, 0.1), Activity("R", 1.0, 0.9)


def dumped(rank, *threads, activity=WAITING, missing="", in_collective=False):
    task = TaskKey("worker", rank)
    stacks = TaskStacks(task, 40 + rank, activity, threads, missing)
    return DumpedTask(task, rank, "gpu1", in_collective, 412, stacks)


def test_the_odd_rank_is_first():
    tasks = [dumped(rank, REDUCE, in_collective=True) for rank in (0, 1, 2, 4)] + [dumped(3, INPUT, OTHER)]
    assert list(stack_lines(tasks)) == [
        "rank 3 (worker:3) on gpu1, pid 43: waiting (0.10 s of CPU time in 1.0 s)",
        '  File "/train.py", line 41, in main',
        "    next(iterator)",
        "  ... 1 frame in tensorflow ...",
        "  another thread:",
        "    ... 1 frame in Python ...",
        '    File "/data.py", line 7, in read',
        "      file.read()",
        "4 ranks (0-2, 4): waiting in a collective operation",
        '  File "/train.py", line 44, in main',
        "    tape.gradient(x)",
        "  ... 1 frame in keras ...",
    ]


def test_of_two_the_one_outside_is_first():
    tasks = [dumped(0, REDUCE, in_collective=True), dumped(1, INPUT, activity=COMPUTING)]
    assert [line.partition(" on ")[0] for line in stack_lines(tasks) if line.startswith("rank")] == [
        "rank 1 (worker:1)",
        "rank 0 (worker:0)",
    ]


def test_ranks_without_stacks_say_why():
    tasks = [
        dumped(0, activity=Activity("T", 1.0)),
        dumped(1, missing="it has no init()"),
        DumpedTask(TaskKey("evaluator", 0), None),
    ]
    assert set(stack_lines(tasks)) == {
        "rank 0 (worker:0) on gpu1, pid 40: stopped by a signal",
        "rank 1 (worker:1) on gpu1, pid 41: waiting (0.10 s of CPU time in 1.0 s); no stack: it has no init()",
        "evaluator:0: no stack: its agent has not answered: it is stopped or slow, or the network between them is",
    }


def test_equal_stacks_of_other_states_stand_apart():
    lines = list(stack_lines([dumped(0, INPUT), dumped(1, INPUT, activity=COMPUTING), dumped(2, INPUT)]))
    assert lines[0] == "rank 1 (worker:1) on gpu1, pid 41: computing (0.90 s of CPU time in 1.0 s)"
    assert "2 ranks (0, 2): waiting" in lines


def test_tasks_are_named_in_short():
    assert name_tasks([dumped(3)]) == "rank 3"
    assert name_tasks([dumped(3), DumpedTask(TaskKey("evaluator", 0), None)]) == "rank 3 and evaluator:0"


def test_programs_get_all_frames():
    tasks = (dumped(0, INPUT, OTHER), dumped(1, REDUCE), DumpedTask(TaskKey("worker", 2), 2, "gpu2"))
    document = json.loads(json.dumps(stack_document("job-1", unpack_dump(pack_dump(tasks)))))
    assert document["job"] == "job-1"
    first = next(one for one in document["tasks"] if one["rank"] == 0)
    assert first["threads"][1][1] == {
        "file": "/data.py",
        "line": 7,
        "function": "read",
        "source": "file.read()",
        "package": "",
    }
    assert (first["does"], first["missing"], first["completed"]) == ("waiting", None, 412)
    assert sorted(one["group"] for one in document["tasks"]) == [0, 1, 2]
    silent = next(one for one in document["tasks"] if one["rank"] == 2)
    assert (silent["does"], silent["threads"]) == (None, [])
    assert "has not answered" in silent["missing"]
