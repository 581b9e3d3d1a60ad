"""The configuration of all tests."""

import os
import signal
from collections.abc import Iterator

import cloudpickle
import pytest
import second_device

# Started in the background of a shell, this process ignores Ctrl-C and so would all processes that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if second_device.asked_for(os.environ):
    second_device.use()


@pytest.fixture(autouse=True, scope="module")
def _functions_travel_whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pickles functions of test modules by value for other processes, since only pytest can import these modules."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)
