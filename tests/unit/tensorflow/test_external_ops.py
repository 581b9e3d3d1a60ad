"""Errors of other engines, as TensorFlow shows them."""

import re
from pathlib import Path

import pytest

tf = pytest.importorskip("tensorflow")

from tfcollective._base.errors import Code, CollectiveError
from tfcollective.tensorflow._external_ops import tensorflow_error

pytestmark = pytest.mark.tensorflow
ROOT = Path(__file__).resolve().parents[3]


class _Of(CollectiveError):
    def __init__(self, code):
        super().__init__("why")
        self.code = code


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_every_code_has_an_error(code):
    assert str(tensorflow_error(_Of(code))).startswith(f"{code.name}: why")


def native_codes():
    """tfc_code name -> the number that TensorFlow, Abseil and gRPC share, as the native kernels map it."""
    (header,) = ROOT.glob("native/**/canonical_codes.h")
    codes, names = {}, []
    for case, number in re.findall(r"case TFC_(\w+):|return (\d+);", header.read_text()):
        if case:
            names.append(case)
        else:
            codes.update(dict.fromkeys(names, int(number)))
            names = []
    return codes


def test_errors_are_those_of_the_native_ops():
    codes = native_codes()
    assert set(codes) == {code.name for code in Code}
    for code in Code:
        if code is not Code.OK:
            assert tensorflow_error(_Of(code)).error_code == codes[code.name], code
