"""The Python reference on the site has a description of each parameter.

The site is built from the source, without importing it, so these tests read the source in the same way.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
SHOWN = sorted({name for page in PAGES for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)})


def source_of(name: str) -> ast.AST | None:
    """The definition of a class or function by its full name; None for a module or an alias."""
    path, _, last = name.rpartition(".")
    place = ROOT / ("launchers" if path.startswith("tfcollective_launchers") else "") / Path(*path.split("."))
    tree = ast.parse((place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    return next((node for node in tree.body if isinstance(node, kinds) and node.name == last), None)


def names_of_decorators(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    return {ast.unparse(one) for one in node.decorator_list}


def parameters(node: ast.FunctionDef) -> list[str]:
    arguments = node.args
    optional = [one for one in (arguments.vararg, arguments.kwarg) if one]
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *optional]
    return [one.arg for one in listed if one.arg != "self"]


def as_on_the_site(node: ast.FunctionDef) -> str:
    from tfcollective.tensorflow import _docstrings as docstrings

    text = ast.get_docstring(node) or ""
    completes = names_of_decorators(node).intersection(docstrings.COMPLETING)
    return docstrings.completed(text, parameters(node)) if completes else text


def undescribed(names: list[str], docstring: str) -> list[str]:
    return [name for name in names if not re.search(rf"^    \*{{0,2}}{name}(, [\w, ]+)?( \(.*\))?:", docstring, re.M)]


FUNCTIONS = [name for name in SHOWN if isinstance(source_of(name), ast.FunctionDef)]
CLASSES = [name for name in SHOWN if isinstance(source_of(name), ast.ClassDef)]


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_of_a_function_is_described(name):
    pytest.importorskip("tensorflow")
    node = source_of(name)
    assert undescribed(parameters(node), as_on_the_site(node)) == []


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_site_shows_what_help_shows(name):
    pytest.importorskip("tensorflow")
    module, _, last = name.rpartition(".")
    function = getattr(importlib.import_module(module), last)
    assert list(inspect.signature(function).parameters) == parameters(source_of(name))
    assert inspect.getdoc(function) == as_on_the_site(source_of(name))


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_of_a_class_is_described(name):
    node = source_of(name)
    made = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if made is not None:
        both = f"{ast.get_docstring(node)}\n{ast.get_docstring(made)}"
        assert undescribed(parameters(made), both) == []


@pytest.mark.tensorflow
def test_a_docstring_gets_what_it_omits():
    pytest.importorskip("tensorflow")
    from tfcollective.tensorflow._docstrings import completed

    text = "Adds.\n\nArgs:\n    tensor: any shape.\n\nReturns:\n    The sum."
    found = completed(text, ["tensor", "op", "unknown"])
    assert found == text.replace("any shape.\n", "any shape.\n    op: Average (default), Sum, Min, Max or Product.\n")
    assert completed("Adds.", ["op"]) == "Adds."
