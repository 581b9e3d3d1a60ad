"""The configuration of all tests."""

import importlib.util
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import hypothesis
import pytest
import second_device

# The source tree may be linked into an environment without its native library or its benchmarks: unit tests that need
# them are left out then, and the header says so. An installed wheel has no such excuse.
TREE = Path(__file__).parents[1] / "tfcollective"
FROM_TREE = Path(importlib.util.find_spec("tfcollective").origin).parent == TREE
NO_LIBRARY = FROM_TREE and not (TREE / "_runtime/native_library/libtfcollective.so").exists()
NO_BENCH = FROM_TREE and importlib.util.find_spec("tfcollective_bench") is None
LEFT_OUT = ["unit/communicator", "unit/runtime", "unit/cli/test_check*", "unit/cli/test_run_options*"] * NO_LIBRARY + [
    "unit/bench",
    "unit/cli/test_extra*",
] * NO_BENCH
collect_ignore_glob = [f"{pattern}{rest}" for pattern in LEFT_OUT for rest in ("", "/*")]

# Started in the background of a shell, or under nohup, this process ignores signals and so would all processes that
# tests start.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Found once, found always: what a test does follows from its text. To search anew: pytest --hypothesis-profile=default
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

if second_device.asked_for(os.environ):
    second_device.use()


def pytest_report_header() -> list[str]:
    """Says what is left out."""
    no_library = "tfcollective: without its native library: install a C++17 compiler, then pip install -e . again"
    no_bench = "tfcollective: without tests of the benchmarks: pip install -e ./benchmarks"
    return [no_library] * NO_LIBRARY + [no_bench] * NO_BENCH


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the slowest files first, so that no process has to wait for one at the end: jobs that import TensorFlow,
    then other jobs. Repeated tests (`make test-soak`) are mixed, so that jobs that compute run beside others that wait:
    in an order that all of xdist's workers find."""
    for item in items:
        if NO_BENCH and "bench" in item.name:
            item.add_marker(pytest.mark.skip(reason="tfcollective-bench is not installed"))
    if config.getoption("count", 1) > 1:
        random.Random(len(items)).shuffle(items)
        return

    def slowest_first(item: pytest.Item) -> int:
        marks = {mark.name for mark in item.iter_markers()}
        return -len(marks & {"multiprocess", "tensorflow"}) if "multiprocess" in marks else 0

    items.sort(key=slowest_first)


@pytest.fixture(autouse=True)
def no_seed_for_the_next_test() -> Iterator[None]:
    """With TensorFlow's global seed, a shuffle without a seed of its own has an order."""
    yield
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is not None and context.global_seed() is not None:
        sys.modules["tensorflow"].random.set_seed(None)


@pytest.fixture(autouse=True)
def no_world_for_the_next_test() -> Iterator[None]:
    """What a test joins it leaves: a later test's `init` would do nothing."""
    yield
    runtime = sys.modules.get("tfcollective._runtime")
    if runtime is not None and runtime.is_initialized():
        runtime.shutdown()
        pytest.fail("this test left a world open: end it by tfcollective.shutdown()", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def _functions_travel_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pickles functions of test modules by value for other processes, since only pytest can import these modules."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
