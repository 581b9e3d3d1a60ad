"""Makes gradients smaller on the wire."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """Turns a tensor into what is sent, and back."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor to send, and what :meth:`decompress` needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The received tensor as the caller wants it."""
        del ctx
        return tensor


class NoneCompressor(Compressor):
    """Sends tensors as they are."""


class _CastCompressor(Compressor):
    wire: Any

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Casts wider floating-point tensors to the wire type."""
        if tensor.dtype.is_floating and tensor.dtype.size > cls.wire.size:
            return tf.cast(tensor, cls.wire), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Casts back to the type before :meth:`compress`."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating-point tensors as float16. Beware of its range: values above 65504 become infinite."""

    wire = tf.float16


class BFloat16Compressor(_CastCompressor):
    """Sends floating-point tensors as bfloat16: float32's range, 8 bits of precision."""

    wire = tf.bfloat16


class Compression:
    """The choices for the argument `compression`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BFloat16Compressor
