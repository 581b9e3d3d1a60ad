"""The C interface as ctypes sees it: every struct, callback and function of ``tfcollective.h``, in one table.

Nothing else in the package declares a native signature. ``tests/unit/native`` parses the header and proves that this
table is complete and that the struct layouts are equal.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any

ABI_VERSION = 1
MESSAGE_SIZE = 4096
MAX_SECONDS = 1e6
ADDRESS_SIZE = 512


class DType(IntEnum):
    """Element types (``tfc_dtype``)."""

    FLOAT16 = 0
    BFLOAT16 = 1
    FLOAT32 = 2
    FLOAT64 = 3
    INT8 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    UINT8 = 8
    UINT16 = 9
    UINT32 = 10
    UINT64 = 11
    BOOL = 12


class Op(IntEnum):
    """Reductions (``tfc_op``); the numbers are Horovod's."""

    AVERAGE = 0
    SUM = 1
    MIN = 3
    MAX = 4
    PRODUCT = 5


class Collective(IntEnum):
    """Operations (``tfc_collective``)."""

    ALLREDUCE = 0
    REDUCESCATTER = 1
    ALLGATHER = 2
    BROADCAST = 3
    ALLTOALL = 4
    BARRIER = 5


class LogLevel(IntEnum):
    """Log levels (``tfc_log_level``); the numbers are those of :mod:`logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Transport(IntEnum):
    """The way bytes move (``tfc_transport``)."""

    AUTO = 0
    TCP = 1


class Error(ctypes.Structure):
    """``tfc_error``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("code", c_int32),
        ("peer", c_int32),
        ("sys_errno", c_int32),
        ("reserved", c_int32),
        ("message", c_char * MESSAGE_SIZE),
    )


LogFn = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
DoneFn = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Error))
AllocateFn = ctypes.CFUNCTYPE(c_void_p, c_void_p, POINTER(c_int64), c_int32)


ProvideFn = ctypes.CFUNCTYPE(None, c_void_p)


class Result(ctypes.Structure):
    """``tfc_result``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("rows", POINTER(c_int64)),
        ("size", c_int32),
        ("reserved", c_int32),
        ("memory", c_void_p),
        ("provide", ProvideFn),
    )


class ListenerOptions(ctypes.Structure):
    """``tfc_listener_options``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("bind_host", c_char_p),
        ("node_id", c_char_p),
        ("first_port", c_int32),
        ("last_port", c_int32),
    )


class CommunicatorOptions(ctypes.Structure):
    """``tfc_communicator_options``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("size", c_int32),
        ("addresses", POINTER(c_char_p)),
        ("key", POINTER(c_uint8)),
        ("key_size", c_size_t),
        ("generation", c_uint64),
        ("connect_timeout_s", c_double),
        ("op_timeout_s", c_double),
        ("stall_warning_s", c_double),
        ("transport", c_int32),
        ("spin_us", c_int32),
        ("log", LogFn),
        ("log_user", c_void_p),
        ("world_ranks", POINTER(c_int32)),
        ("skip_link_probe", c_int32),
        ("cancellation", c_void_p),
    )


class CommunicatorInfo(ctypes.Structure):
    """``tfc_communicator_info``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("size", c_int32),
        ("local_rank", c_int32),
        ("local_size", c_int32),
        ("cross_rank", c_int32),
        ("cross_size", c_int32),
        ("uses_shared_memory", c_int32),
        ("broken", c_int32),
        ("completed", c_uint64),
        ("pending", c_uint64),
        ("link_latency_s", c_double),
        ("link_bandwidth", c_double),
    )


class Span(ctypes.Structure):
    """``tfc_span``."""

    _fields_ = (("input", c_void_p), ("output", c_void_p), ("count", c_int64))


class Bucket(ctypes.Structure):
    """``tfc_bucket``."""

    _fields_ = (("spans", POINTER(Span)), ("num_spans", c_size_t), ("dtype", c_int32))


class Request(ctypes.Structure):
    """``tfc_request``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("collective", c_int32),
        ("dtype", c_int32),
        ("op", c_int32),
        ("root", c_int32),
        ("prescale", c_double),
        ("postscale", c_double),
        ("timeout_s", c_double),
        ("name", c_char_p),
        ("spans", POINTER(Span)),
        ("num_spans", c_size_t),
        ("shape", POINTER(c_int64)),
        ("ndim", c_int32),
        ("splits", POINTER(c_int64)),
        ("allocate", AllocateFn),
        ("allocate_user", c_void_p),
    )


class PlanOptions(ctypes.Structure):
    """``tfc_plan_options``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("signature", c_char_p),
        ("num_buckets", c_int32),
        ("op", c_int32),
        ("prescale", c_double),
        ("postscale", c_double),
        ("timeout_s", c_double),
    )


class TimelineEvent(ctypes.Structure):
    """``tfc_timeline_event``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("collective", c_int32),
        ("channel", c_uint32),
        ("sequence", c_uint64),
        ("bytes", c_uint64),
        ("submitted_ns", c_int64),
        ("began_ns", c_int64),
        ("ended_ns", c_int64),
        ("name", c_char_p),
    )


class DeviceOptions(ctypes.Structure):
    """``tfc_device_options``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("cuda_library", c_char_p),
        ("nccl_library", c_char_p),
        ("nccl_candidates", POINTER(c_char_p)),
        ("num_nccl_candidates", c_size_t),
        ("share_gpus", c_int32),
        ("max_ctas", c_int32),
    )


class DeviceLibraries(ctypes.Structure):
    """``tfc_device_libraries``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("cuda_version", c_int32),
        ("nccl_version", c_int32),
        ("num_devices", c_int32),
        ("reserved", c_int32),
        ("cuda_path", c_char * 512),
        ("nccl_path", c_char * 512),
        ("problem", c_char * 2048),
    )


class DeviceInfo(ctypes.Structure):
    """``tfc_device_info``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("ordinal", c_int32),
        ("major", c_int32),
        ("minor", c_int32),
        ("num_peers", c_int32),
        ("memory", c_uint64),
        ("name", c_char * 256),
        ("bus_id", c_char * 32),
        ("uuid", c_char * 64),
    )


class DeviceCall(ctypes.Structure):
    """``tfc_device_call``."""

    _fields_ = (
        ("struct_size", c_size_t),
        ("device", c_int32),
        ("by_name", c_int32),
        ("stream", c_void_p),
        ("launched", DoneFn),
        ("user", c_void_p),
        ("through_host", c_int32),
        ("plan", c_void_p),
        ("bucket", c_int32),
    )


TimelineFn = ctypes.CFUNCTYPE(None, c_void_p, POINTER(TimelineEvent))

_code = c_int32
_handle = c_void_p
_handle_out = POINTER(c_void_p)
_error_out = POINTER(Error)

#: name -> (result, arguments). Opaque handles are c_void_p.
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tfc_abi_version": (c_int32, ()),
    "tfc_version": (c_char_p, ()),
    "tfc_code_name": (c_char_p, (c_int32,)),
    "tfc_dtype_size": (c_size_t, (c_int32,)),
    "tfc_note_unordered_calls": (None, ()),
    "tfc_allocate_result": (c_void_p, (c_void_p, POINTER(c_int64), c_int32)),
    "tfc_listener_create": (_code, (POINTER(ListenerOptions), _handle_out, _error_out)),
    "tfc_listener_address": (_code, (_handle, c_char_p, c_size_t, _error_out)),
    "tfc_listener_destroy": (None, (_handle,)),
    "tfc_cancellation_create": (_code, (_handle_out, _error_out)),
    "tfc_cancellation_request": (None, (_handle, c_char_p)),
    "tfc_cancellation_release": (None, (_handle,)),
    "tfc_communicator_create": (_code, (_handle, POINTER(CommunicatorOptions), _handle_out, _error_out)),
    "tfc_communicator_abort": (None, (_handle, c_char_p)),
    "tfc_communicator_shutdown": (_code, (_handle, c_double, _error_out)),
    "tfc_communicator_release": (None, (_handle,)),
    "tfc_communicator_get_info": (_code, (_handle, POINTER(CommunicatorInfo), _error_out)),
    "tfc_run": (_code, (_handle, POINTER(Request), _error_out)),
    "tfc_call_prepare": (_code, (_handle, POINTER(Request), _handle_out, _error_out)),
    "tfc_call_run": (_code, (_handle, c_void_p, c_void_p, _error_out)),
    "tfc_call_release": (None, (_handle,)),
    "tfc_submit": (_code, (_handle, POINTER(Request), DoneFn, c_void_p, _error_out)),
    "tfc_join": (_code, (_handle, c_double, POINTER(c_int32), _error_out)),
    "tfc_plan_acquire": (_code, (_handle, POINTER(PlanOptions), _handle_out, _error_out)),
    "tfc_plan_start": (_code, (_handle, c_int32, c_int32, POINTER(Span), c_size_t, DoneFn, c_void_p, _error_out)),
    "tfc_plan_run": (_code, (_handle, POINTER(Bucket), c_size_t, _error_out)),
    "tfc_plan_release": (None, (_handle,)),
    "tfc_plan_forget": (_code, (_handle, c_char_p, _error_out)),
    "tfc_device_find": (_code, (POINTER(DeviceOptions), POINTER(DeviceLibraries), _error_out)),
    "tfc_device_describe": (_code, (POINTER(DeviceOptions), c_int32, POINTER(DeviceInfo), _error_out)),
    "tfc_device_configure": (_code, (_handle, POINTER(DeviceOptions), _error_out)),
    "tfc_device_run": (_code, (_handle, POINTER(Request), POINTER(DeviceCall), POINTER(c_uint64), _error_out)),
    "tfc_device_join": (_code, (_handle, c_uint64, c_void_p, _error_out)),
    "tfc_device_wait": (_code, (_handle, c_uint64, c_double, _error_out)),
    "tfc_device_allocate": (_code, (_handle, c_void_p, c_size_t, POINTER(c_void_p), _error_out)),
    "tfc_device_free": (None, (_handle, c_void_p)),
    "tfc_timeline_start": (_code, (_handle, c_size_t, _error_out)),
    "tfc_timeline_add": (_code, (_handle, POINTER(TimelineEvent), _error_out)),
    "tfc_timeline_stop": (_code, (_handle, TimelineFn, c_void_p, POINTER(c_uint64), _error_out)),
    "tfc_process_set_publish": (_code, (c_int32, _handle, _error_out)),
    "tfc_process_set_acquire": (_code, (c_int32, _handle_out, _error_out)),
}
