"""Errors of other engines, as TensorFlow shows them."""

import pytest

tf = pytest.importorskip("tensorflow")

from tfcollective.errors import Code, CollectiveError, PeerLostError, ProtocolError, ResourceExhaustedError
from tfcollective.tensorflow.external_ops import tensorflow_error

pytestmark = pytest.mark.tensorflow


class _Of(CollectiveError):
    def __init__(self, code):
        super().__init__("why")
        self.code = code


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK])
def test_every_code_has_an_error(code):
    assert str(tensorflow_error(_Of(code))).startswith(f"{code.name}: why")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PeerLostError("x"), tf.errors.UnavailableError),
        (ResourceExhaustedError("x"), tf.errors.ResourceExhaustedError),
        (ProtocolError("x"), tf.errors.FailedPreconditionError),
    ],
)
def test_it_is_the_one_of_the_native_ops(error, expected):
    assert type(tensorflow_error(error)) is expected
