"""Options as a dataclass declares them: what is read, checked and refused."""

from dataclasses import dataclass

import pytest

from tfcollective._base.errors import ConfigError
from tfcollective._base.options import (
    LINE,
    PATH,
    VARIABLES,
    WORDS,
    Options,
    count,
    form,
    line,
    option,
    options_of,
    reference_table,
    seconds,
)


def check_short(text):
    if len(text) > 3:
        raise ConfigError(f"expected 3 characters or fewer, got {text!r}")


@dataclass(frozen=True)
class Pair:
    left: str
    right: str

    @classmethod
    def parse(cls, text):
        left, dash, right = text.partition("-")
        if not dash:
            raise ConfigError(f"expected A-B, got {text!r}")
        return cls(left, right)


@dataclass(frozen=True)
class Mine(Options):
    size: int = option("Mine", count(1, 9, "as there are nine"), "Size.", "-s --size", ...)
    name: str | None = option("Mine", LINE, "Name; see --size too.", "--name")
    short: tuple[str, ...] = option("Mine", line(check_short, many=True), "Short texts.", "--short", ())
    pairs: tuple[Pair, ...] = option("Mine", form(Pair, Pair.parse, "A-B"), "Pairs.", "--pair", ())
    words: tuple[str, ...] = option("Mine", WORDS, "Words.", "--words", ())
    values: dict[str, str] = option("Mine", VARIABLES, "Values.", "--value", {})  # noqa: RUF009  it makes a field
    wait: float = option("Mine", seconds(most=60), "Limit.", default="none", value=5.0)
    other: object = None


def test_texts_and_values_mean_the_same():
    texts = {"size": "3", "short": ["a", "b"], "pair": ["a-b"], "words": "x 'y z'", "values": ["a=b"], "wait": "7"}
    values = {"s": 3, "short": ("a", "b"), "pairs": [Pair("a", "b")], "words": ["x", "y z"], "value": {"a": "b"}}
    assert Mine.of(texts) == Mine.of({**values, "wait": 7.0}) == Mine.of(vars(Mine.of(texts)))
    assert Mine.of({"size": 1, "short": "a"}).short == ("a",)
    assert Mine.of({"size": 1, "name": None, "other": ...}) == Mine(1, other=...)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("size", "platform: expected a mapping from names to values, got 'size'"),
        ({}, r"size \(-s\) is missing: Size."),
        ({"size": 0}, r"size \(-s\): expected 1 or more, got 0"),
        ({"size": 10}, r"size \(-s\): expected at most 9, as there are nine, got 10"),
        ({"size": 1, "sise": 2}, "unknown option of the platform: 'sise'; did you mean 'size'"),
        ({"size": 1, "s": 2}, "give size or s, not both"),
        ({"size": 1, "name": ""}, r"name \(--name\): expected a text of one line, got ''"),
        ({"size": 1, "name": "a\nb"}, "expected a text of one line"),
        ({"size": 1, "short": ["a", "long"]}, r"short \(--short\): expected 3 characters or fewer, got 'long'"),
        ({"size": 1, "short": 7}, "expected a text of one line, got 7"),
        ({"size": 1, "pairs": ["a"]}, r"pairs \(--pair\): expected A-B, got 'a'"),
        ({"size": 1, "pairs": [3]}, r"pairs \(--pair\): expected A-B, got 3"),
        ({"size": 1, "words": "'"}, "words .*No closing quotation"),
        ({"size": 1, "words": ["a\n"]}, r"words \(--words\): expected a text of one line"),
        ({"size": 1, "wait": 61}, "wait: expected a number of seconds, at most 60"),
    ],
)
def test_what_cannot_be_used_is_named(given, said):
    with pytest.raises(ConfigError, match=said):
        Mine.of(given)


def test_options_made_in_code_check_themselves():
    with pytest.raises(ConfigError, match=r"size \(-s\): expected 1 or more"):
        Mine(True)
    with pytest.raises(ConfigError, match=r"name .*: expected a text"):
        Mine(1, name=3)


def test_a_platform_without_options_takes_none():
    assert options_of(Options) == {}
    with pytest.raises(ConfigError, match="unknown option of the platform: 'size'"):
        Options.of({"size": 1})


def test_the_table_has_flags_as_code():
    lines = reference_table(options_of(Mine)).splitlines()
    assert "| `size` | `-s` `--size` |  | Size. |" in lines
    assert "| `name` | `--name` |  | Name; see `--size` too. |" in lines
    assert "| `wait` |  | none | Limit. |" in lines


def test_paths_are_read_from_here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert PATH.read("a") == str(tmp_path / "a")
