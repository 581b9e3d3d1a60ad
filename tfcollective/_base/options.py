"""Options of jobs and of platforms, declared once: each is a field of a dataclass with its :class:`Option`, plain data.

The command line, the keyword arguments of Python calls, the checks and the reference pages are made from it.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tfcollective._base.errors import ConfigError
from tfcollective._base.processes import command_words
from tfcollective._base.timing import MOST_SECONDS, unfit_seconds
from tfcollective._base.topology import PortRange

_KEY = "option"
_O = TypeVar("_O", bound="Options")
_FLAGS = re.compile(r"`[^`]*`|(?<!\S)-[\w-]+")


@dataclass(frozen=True)
class Kind:
    """The values that an option may have.

    Attributes:
        read: a value from what a user gives: the text of the command line, or what Python code passes. Raises
            ValueError for a text that means nothing (ConfigError is one).
        problem: what is wrong with a value, as the end of an error; None if it can be used.
        metavar: stands for the value in the help; empty: a flag.
        many: True if the command line may repeat the option: ``read`` gets all texts.
        words: the number of words that one value has on the command line.
    """

    read: Callable[[Any], Any]
    problem: Callable[[Any], str | None]
    metavar: str = ""
    many: bool = False
    words: int = 1


@dataclass(frozen=True)
class Option:
    """The declaration of one option.

    Attributes:
        help: its line of help.
        kind: its values.
        flags: its spellings on the command line, the usual one first; none: for Python code alone.
        group: its heading in the help.
        more: what the reference page says beyond the help.
        metavar: stands for the value in the help; empty: as its kind says.
        default: its default, for people; empty: that of the field.
        setting: True if its default is the setting of the same name.
        elastic: True if only an elastic job may have it.
        common: True if the short help shows it.
        opposite: True if the flag means False.
        needed: True if there is no default.
    """

    help: str
    kind: Kind
    flags: tuple[str, ...]
    group: str
    more: str = ""
    metavar: str = ""
    default: str = ""
    setting: bool = False
    elastic: bool = False
    common: bool = False
    opposite: bool = False
    needed: bool = False

    def title(self, name: str) -> str:
        """Returns its name in errors: the field's name, which Python code uses, and the usual flag."""
        return f"{name} ({self.flags[0]})" if self.flags else name

    def read(self, name: str, given: Any) -> Any:
        """Returns the value for what a user has given; raises ConfigError that names the option."""
        try:
            return self.kind.read(given)
        except ConfigError as error:
            raise ConfigError(f"{self.title(name)}: {error}") from error
        except ValueError as error:
            raise ConfigError(f"{self.title(name)} {given!r}: {error}") from error

    def check(self, name: str, value: Any) -> None:
        """Raises ConfigError if the option cannot have this value."""
        problem = self.kind.problem(value)
        if problem is not None:
            raise ConfigError(f"{self.title(name)}: {problem}")


def option(group: str, kind: Kind, text: str, flags: str = "", value: Any = None, **declared: Any) -> Any:
    """A field of a dataclass with its :class:`Option`.

    Args:
        group: the heading of the help.
        kind: the values.
        text: the line of help.
        flags: the spellings on the command line, separated by blanks; empty: none.
        value: the default; ``...`` stands for none.
        **declared: further fields of :class:`Option`.
    """
    metadata = {_KEY: Option(text, kind, tuple(flags.split()), group, opposite=value is True, **declared)}
    if isinstance(value, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=dataclasses.MISSING if value is ... else value, metadata=metadata)


#: The headings of the options that every job has, whatever its platform.
HEADINGS = ("Processes", "Hosts", "Failures", "Output", "Performance", "Compatibility")
#: The heading of those that `tfcollective manifest` has, and `tfcollective run` does not.
MANIFESTS = "Manifests"
processes, hosting, failures, output, performance, compatibility = (partial(option, heading) for heading in HEADINGS)
clusters = partial(option, "Clusters")


class Options:
    """Base of a frozen dataclass of options: what a launcher takes besides the options of every job.

    It checks itself when it is made; ConfigError names the option that cannot have its value.
    """

    def __post_init__(self) -> None:
        check_options(self)

    @classmethod
    def of(cls: type[_O], given: Mapping[str, Any]) -> _O:
        """The options with these values by name: as the fields have them, or texts as the command line takes them.
        What is None is as by default. Raises ConfigError."""
        said = cls.read(given)
        for name, one in options_of(cls).items():
            if one.needed and name not in said:
                raise ConfigError(f"{one.title(name)} is missing: {one.help}")
        return cls(**said)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """The values that are given, by field; raises ConfigError for an unknown name or a text that means nothing."""
        if not isinstance(given, Mapping):
            raise ConfigError(f"platform: expected a mapping from names to values, got {given!r}")
        options = options_of(cls)
        said = by_field(given, options)
        check_names(said, [one.name for one in _fields(cls)], "option of the platform:")
        return {name: options[name].read(name, value) if name in options else value for name, value in said.items()}


def check_options(values: Any) -> None:
    """Raises ConfigError for the first option of a dataclass that cannot have its value. None is allowed where it is
    the default."""
    for one in _fields(type(values)):
        value = getattr(values, one.name)
        if _KEY in one.metadata and not (value is None and one.default is None):
            one.metadata[_KEY].check(one.name, value)


def _fields(kind: type[Any]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def options_of(kind: type[Any]) -> dict[str, Option]:
    """The options that a dataclass declares, by field. Those without a default of their own get that of the field."""
    found = {}
    for one in _fields(kind):
        if _KEY in one.metadata:
            declared: Option = one.metadata[_KEY]
            needed = one.default is one.default_factory is dataclasses.MISSING
            found[one.name] = replace(declared, default=declared.default or _shown(one.default), needed=needed)
    return found


def _shown(default: Any) -> str:
    if isinstance(default, float):
        return f"{default:g}"
    return default if isinstance(default, str) else str(default) if type(default) is int else ""


def by_field(given: Mapping[str, Any], options: Mapping[str, Option]) -> dict[str, Any]:
    """The given values by the names of these options. A keyword may also be the flag without its dashes, as Horovod's
    are: ``min_num_proc``. None says nothing. Raises ConfigError if two spellings of one option are given."""
    fields = {
        flag.lstrip("-").replace("-", "_"): name
        for name, one in options.items()
        for flag in one.flags
        if not one.opposite
    }
    found: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for keyword, value in given.items():
        name = keyword if keyword in options else fields.get(keyword, keyword)
        if value is not None:
            if name in found:
                raise ConfigError(f"give {spelt[name]} or {keyword}, not both: they mean the same")
            found[name], spelt[name] = value, keyword
    return found


def check_names(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Raises ConfigError for the first name that is not known, with the nearest known one; ``what`` it would name."""
    for name in sorted(set(given) - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown {what} {name!r}; {meant}known: {', '.join(sorted(known))}")


def reference_table(options: Mapping[str, Option]) -> str:
    """The table of these options, by name, for the reference documentation."""
    rows = ["| keyword | command line | default | meaning |", "|---|---|---|---|"]
    for name, one in options.items():
        cells = (f"`{name}`", _as_code(" ".join(one.flags)), one.default, _as_code(f"{one.help} {one.more}".strip()))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _as_code(text: str) -> str:
    return _FLAGS.sub(lambda found: f"`{found[0].strip('`')}`", text)


# ---- kinds ----------------------------------------------------------------------------------------------------------


def _unless(fits: Callable[[Any], bool], needed: str) -> Callable[[Any], str | None]:
    return lambda value: None if fits(value) else f"expected {needed}, got {value!r}"


def _number(kind: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Reads the text of a number; any other value stays as it is, for the check to refuse."""

    def read(given: Any) -> Any:
        try:
            return kind(given) if isinstance(given, str) else given
        except ValueError:
            return given

    return read


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


def _path(given: Any) -> Any:
    return str(Path(given).absolute()) if isinstance(given, str | os.PathLike) else given


def _command(given: Any) -> Any:
    if isinstance(given, str | os.PathLike):
        return command_words(given) if isinstance(given, str) else (os.fspath(given),)
    return tuple(map(str, given)) if isinstance(given, Iterable) else given


def _names(given: Any) -> Any:
    if isinstance(given, str):
        return tuple(filter(None, given.split(",")))
    return tuple(name for text in given for name in _names(text)) if isinstance(given, Iterable) else given


def _words(given: Any) -> Any:
    return tuple(shlex.split(given) if isinstance(given, str) else given)


def _listed(given: Any) -> Any:
    """A text is one of a list."""
    return (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)


def _each(problem: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    return lambda values: next((said for one in values if (said := problem(one)) is not None), None)


def _variables(given: Any) -> Any:
    if isinstance(given, Mapping):
        return dict(given)
    found = {}
    for text in given:
        name, equals, found[name] = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"expected NAME=VALUE, got {text!r}")
    return found


def _unfit_variables(value: Any) -> str | None:
    """The values may be secret: only the names are shown."""
    for name, text in value.items() if isinstance(value, Mapping) else [(value, "")]:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            return f"{name!r} cannot be the name of a variable"
        if not isinstance(text, str) or "\0" in text:
            return f"{name}: expected a string without NUL characters"
    return None


def count(least: int, most: int | None = None, why: str = "") -> Kind:
    """Whole numbers; ``why`` is the reason for the upper limit."""

    def problem(value: Any) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            return f"expected {least} or more, got {value!r}"
        return None if most is None or value <= most else f"expected at most {most}, {why}, got {value}"

    return Kind(_number(int), problem, "N")


def seconds(*, above_zero: bool = True, most: float = MOST_SECONDS) -> Kind:
    """Time limits."""

    def problem(value: Any) -> str | None:
        needed = unfit_seconds(value, above_zero=above_zero, most=most)
        return None if needed is None else f"expected a number of seconds, {needed}, got {value!r}"

    return Kind(_number(float), problem, "S")


def choice(*words: str, others: Mapping[str, str] | None = None) -> Kind:
    """Accepts one of a few words, in upper or lower case; ``others`` maps further words to these."""
    meant = {**{word: word for word in words}, **{word.lower(): ours for word, ours in (others or {}).items()}}
    read = lambda given: meant.get(given.lower(), given) if isinstance(given, str) else given  # noqa: E731
    return Kind(read, _unless(words.__contains__, f"one of {', '.join(words)}"), f"[{'|'.join(words)}]")


def line(check: Callable[[str], object] = str, metavar: str = "TEXT", *, many: bool = False) -> Kind:
    """Texts of one line. ``check`` raises ConfigError, the end of the error, for one that cannot be used. With ``many``
    the command line repeats the option, and Python code passes a text or a list."""

    def problem(value: Any) -> str | None:
        if not _is_text(value) or not value or "\n" in value:
            return f"expected a text of one line, got {value!r}"
        try:
            check(value)
        except ConfigError as error:
            return str(error)
        return None

    return Kind(_listed, _each(problem), metavar, many=True) if many else Kind(_as_given, problem, metavar)


def form(made: type[Any], parse: Callable[[str], Any], metavar: str) -> Kind:
    """Several values that ``parse`` makes of texts, or raises ConfigError, the end of the error."""

    def read(given: Any) -> Any:
        return tuple(parse(one) if isinstance(one, str) else one for one in _listed(given))

    fits = _unless(lambda value: isinstance(value, made), metavar)
    return Kind(read, _each(fits), metavar, many=True)


def _as_given(given: Any) -> Any:
    return given


FLAG = Kind(_as_given, _unless(lambda value: isinstance(value, bool), "True or False"))
TEXT = Kind(_as_given, _unless(_is_text, "a text"), "TEXT")
LINE = line()
PATH = Kind(_path, _unless(_is_text, "a path"), "F")
COMMAND = Kind(_command, _unless(_are_texts, "a command and its arguments"), "COMMAND")
WORDS = Kind(_words, _each(LINE.problem), "TEXT")  #: of a command line, which is no command of its own
NAMES = Kind(_names, _unless(_are_texts, "a text or a list of names"), "NAME,...", many=True)
VARIABLES = Kind(_variables, _unfit_variables, "K=V", many=True)
PORTS = Kind(
    lambda given: PortRange.parse(given) if isinstance(given, str) else given,
    _unless(lambda value: isinstance(value, PortRange), "LOW-HIGH"),
    "LOW-HIGH",
)
