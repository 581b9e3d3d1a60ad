from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import pytest
from time_limits import within

from tfcollective._base.codec import decode, encode, encode_line, from_document, to_document
from tfcollective._base.errors import ConfigError


class Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    name: str
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ConfigError(f"the size is 0 or more, not {self.size}")


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    weight: float = 1.0
    key: bytes = field(default=b"", repr=False)
    colour: Colour = Colour.RED
    env: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, object] = field(default_factory=dict)
    most: int | None = None


WHOLE = Whole((Part("ä\n", 1), Part("b", 2)), 2, b"\x00\xff", env={"A": "é"}, rest={"n": [1, "x", None]})


def test_values_come_back_as_they_were() -> None:
    assert decode(encode(WHOLE), Whole, "the whole") == WHOLE
    assert from_document(json.loads(json.dumps(to_document(WHOLE))), Whole, "the whole") == WHOLE


def test_a_line_is_one_line() -> None:
    assert encode_line(WHOLE) == encode(WHOLE) + b"\n"
    assert encode(WHOLE).count(b"\n") == 0


def test_surrogates_and_nonfinite_numbers_survive() -> None:
    odd = Whole((Part("\udcff", 1),), math.inf, rest={"loss": -math.inf})
    assert decode(encode(odd), Whole, "it") == odd


def test_defaults_may_be_missing_and_extras_ignored() -> None:
    assert decode(b'{"parts": [], "newer": 3}', Whole, "it") == Whole(())


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is not JSON"),
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `parts`"),
        (b'{"parts": [{"name": "a"}]}', r"`size` - at `\$\.parts\[0\]`"),
        (b'{"parts": [{"name": 3, "size": 3}]}', r"Expected `str`, got `int` - at `\$\.parts\[0\]\.name`"),
        (b'{"parts": [{"name": "a", "size": true}]}', r"Expected `int`, got `bool` - at `\$\.parts\[0\]\.size`"),
        (b'{"parts": [{"name": "a", "size": -1}]}', r"the size is 0 or more, not -1 - at `\$\.parts\[0\]`"),
        (b'{"parts": [], "colour": "blue"}', r"'blue' - at `\$\.colour`"),
        (b'{"parts": [], "key": "%"}', r"at `\$\.key`"),
    ],
)
def test_an_error_says_where_reading_failed(data: bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^the whole cannot be read: .*{says}"):
        decode(data, Whole, "the whole")


def test_what_json_cannot_express_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        encode(Whole((), rest={"x": object()}))


MANY_THREADS = """
import dataclasses, sys, threading
from tfcollective._base.codec import encode, decode

sys.setswitchinterval(1e-6)
for _ in range(60):
    Leaf = dataclasses.make_dataclass("Leaf", [(f"f{i}", "int") for i in range(40)])
    Top = dataclasses.make_dataclass("Top", [("m", tuple[Leaf, ...]), ("leaf", Leaf)])
    leaf = Leaf(*range(40))
    top = Top((leaf,) * 3, leaf)
    right = []
    work = lambda value: right.append(decode(encode(value), type(value), "it") == value)
    threads = [threading.Thread(target=work, args=(value,)) for value in (top, leaf) * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 16
"""


def test_many_threads_may_meet_a_class_first() -> None:
    """In a process of its own, which msgspec would crash."""
    done = subprocess.run([sys.executable, "-c", MANY_THREADS], timeout=within(60), check=False)
    assert done.returncode == 0
