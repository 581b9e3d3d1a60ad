"""The configuration of all tests."""

import os
import random
import signal
from collections.abc import Iterator

import cloudpickle
import hypothesis
import pytest
import second_device

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the slowest files first, so that no process has to wait for one at the end: jobs that import TensorFlow,
    then other jobs. Repeated tests (`make test-soak`) are mixed, so that jobs that compute run beside others that wait:
    in an order that all of xdist's workers find."""
    if config.getoption("count", 1) > 1:
        random.Random(len(items)).shuffle(items)
        return

    def slowest_first(item: pytest.Item) -> int:
        marks = {mark.name for mark in item.iter_markers()}
        return -len(marks & {"multiprocess", "tensorflow"}) if "multiprocess" in marks else 0

    items.sort(key=slowest_first)


@pytest.fixture(autouse=True, scope="module")
def _functions_travel_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pickles functions of test modules by value for other processes, since only pytest can import these modules."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
