"""What tasks publish survives JSON."""

import json
import math

import pytest

from tfcollective._control.wire.protocol import read_published, write_published


def test_numbers_that_json_does_not_know_come_back():
    said = {"metrics": {"loss": math.inf, "low": -math.inf}, "step": 3, "text": "NaNs", "many": [1.5, math.inf]}
    there = write_published(said)
    assert json.loads(json.dumps(there, allow_nan=False)) == there
    assert read_published(there) == said
    assert math.isnan(read_published(write_published({"loss": math.nan}))["loss"])


def test_what_is_no_json_is_refused():
    with pytest.raises(TypeError):
        write_published({"what": object()})
