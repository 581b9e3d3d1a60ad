"""A small report of a benchmark that has not been run."""

from tfcollective_bench.model import Hardware, Report, RunnerState, RunnerStatus, Sample, Versions


def make_report():
    row = {"bytes": 4096, "ranks": 2, "dtype": "float32", "cache": "hot"}
    return Report(
        title="all-reduce",
        command=("tfcollective", "bench", "allreduce"),
        hardware=Hardware("cpu", 2, 2, {"L1d": 32768, "L3": 1 << 25}, 1 << 34, "6.1", (0.5, 0.25, 0.125)),
        versions=Versions({"tfcollective": "0.1", "numpy": "2.0"}),
        settings={"sizes": [4, 4096], "rounds": 3},
        samples=(
            Sample("c", row, "latency", "s", (1e-6, 2e-6), 0),
            Sample("c", {**row, "bytes": 4}, "latency", "s", (1e-7,), 0),
            Sample("openmpi", row, "latency", "s", (3e-6,), 0),
            Sample("openmpi", row, "cpu", "s", (4e-6,), 0),
        ),
        statuses=(RunnerStatus("c", RunnerState.RAN), RunnerStatus("horovod", RunnerState.MISSING, "build it")),
        started=1.0,
        finished=2.5,
        notes=("a note",),
    )
