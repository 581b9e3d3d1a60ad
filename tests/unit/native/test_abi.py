"""The C header and the ctypes table say the same."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tfcollective._base import errors
from tfcollective._base.settings import TRANSPORTS, Settings
from tfcollective._base.timing import MOST_SECONDS
from tfcollective._runtime.communicator import CommunicatorOptions
from tfcollective._runtime.native_library import abi, library

STRUCTS = {
    "tfc_error": abi.Error,
    "tfc_result": abi.Result,
    "tfc_listener_options": abi.ListenerOptions,
    "tfc_communicator_options": abi.CommunicatorOptions,
    "tfc_communicator_info": abi.CommunicatorInfo,
    "tfc_span": abi.Span,
    "tfc_bucket": abi.Bucket,
    "tfc_request": abi.Request,
    "tfc_plan_options": abi.PlanOptions,
    "tfc_timeline_event": abi.TimelineEvent,
    "tfc_device_options": abi.DeviceOptions,
    "tfc_device_libraries": abi.DeviceLibraries,
    "tfc_device_info": abi.DeviceInfo,
    "tfc_device_call": abi.DeviceCall,
}

ENUMS = {
    "tfc_dtype": abi.DType,
    "tfc_op": abi.Op,
    "tfc_collective": abi.Collective,
    "tfc_log_level": abi.LogLevel,
    "tfc_transport": abi.Transport,
}

HANDLES = ("listener", "cancellation", "communicator", "plan", "call")

HEADER = Path(__file__).resolve().parents[3] / "native" / "include" / "tfcollective" / "tfcollective.h"


def _header() -> str:
    """The header without comments and preprocessor lines."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.S)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def _declared_functions() -> dict[str, tuple[str, list[str]]]:
    found = re.findall(r"TFC_EXPORT\s+([^;(]+?)(tfc_\w+)\s*\(([^;]*?)\);", _header(), flags=re.S)
    return {name: (result.strip(), [a.strip() for a in args.split(",")]) for result, name, args in found}


def _declared_structs() -> dict[str, list[str]]:
    structs = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", _header(), flags=re.S):
        fields: list[str] = []
        for line in filter(None, (part.strip() for part in body.split(";"))):
            declared = line.split(",")
            fields += [re.sub(r"\[.*\]", "", d).split()[-1].lstrip("*") for d in declared]
        structs[name] = fields
    return structs


def _declared_enums() -> dict[str, dict[str, int]]:
    enums = {}
    for body, name in re.findall(r"typedef enum \w+ \{(.*?)\} (\w+);", _header(), flags=re.S):
        enums[name] = {k: int(v) for k, v in re.findall(r"TFC_(\w+)\s*=\s*(\d+)", body)}
    return enums


def test_the_table_has_exactly_every_function() -> None:
    assert set(_declared_functions()) == set(abi.FUNCTIONS)


@pytest.mark.parametrize("name", sorted(abi.FUNCTIONS))
def test_signature(name: str) -> None:
    result, arguments = _declared_functions()[name]
    expected = {
        "int32_t": ctypes.c_int32,
        "tfc_code": ctypes.c_int32,
        "const char*": ctypes.c_char_p,
        "size_t": ctypes.c_size_t,
        "void": None,
        "void*": ctypes.c_void_p,
    }[result]
    assert abi.FUNCTIONS[name][0] is expected
    declared = [] if arguments == ["void"] else arguments
    assert [_ctype(a) for a in declared] == list(abi.FUNCTIONS[name][1])


def _ctype(argument: str) -> object:
    kind = re.sub(r"\s*\w+$", "", argument).replace("const ", "").strip()
    table: dict[str, object] = {
        "int32_t": ctypes.c_int32,
        "int64_t": ctypes.c_int64,
        "size_t": ctypes.c_size_t,
        "double": ctypes.c_double,
        "char*": ctypes.c_char_p,
        "void*": ctypes.c_void_p,
        "int32_t*": ctypes.POINTER(ctypes.c_int32),
        "int64_t*": ctypes.POINTER(ctypes.c_int64),
        "uint64_t": ctypes.c_uint64,
        "void**": ctypes.POINTER(ctypes.c_void_p),
        "uint64_t*": ctypes.POINTER(ctypes.c_uint64),
        "tfc_done_fn": abi.DoneFn,
        "tfc_timeline_fn": abi.TimelineFn,
        **{f"tfc_{h}*": ctypes.c_void_p for h in HANDLES},
        **{f"tfc_{h}**": ctypes.POINTER(ctypes.c_void_p) for h in HANDLES},
        **{f"{name}*": ctypes.POINTER(struct) for name, struct in STRUCTS.items()},
    }
    return table[kind]


def test_every_struct_has_the_same_fields_in_order() -> None:
    declared = _declared_structs()
    assert set(declared) == set(STRUCTS)
    for name, struct in STRUCTS.items():
        assert [field[0] for field in struct._fields_] == declared[name], name


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to ask the C compiler for the layouts")
def test_struct_layouts_are_those_of_the_compiler(tmp_path: Path) -> None:
    lines = ["#include <stdio.h>", '#include "tfcollective/tfcollective.h"', "int main(void) {"]
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{f[0]} %zu\\n", offsetof({name}, {f[0]}));' for f in struct._fields_]
    source = tmp_path / "layout.c"
    source.write_text("\n".join([*lines, "return 0; }"]), encoding="utf-8")
    binary = tmp_path / "layout"
    subprocess.run(["gcc", "-std=c11", f"-I{HEADER.parents[1]}", str(source), "-o", str(binary)], check=True)
    out = subprocess.run([str(binary)], check=True, capture_output=True, text=True).stdout
    compiled = {key: int(value) for key, value in (line.split() for line in out.splitlines())}
    ours = {}
    for name, struct in STRUCTS.items():
        ours[name] = ctypes.sizeof(struct)
        ours.update({f"{name}.{f[0]}": getattr(struct, f[0]).offset for f in struct._fields_})
    assert ours == compiled


def test_enums_are_equal() -> None:
    declared = _declared_enums()
    codes = declared.pop("tfc_code")
    assert codes == {code.name: code.value for code in errors.Code}
    prefixes = {"tfc_log_level": "LOG_", "tfc_transport": "TRANSPORT_"}
    assert set(declared) == set(ENUMS)
    for name, members in declared.items():
        prefix = prefixes.get(name, "")
        assert {k.removeprefix(prefix): v for k, v in members.items()} == {m.name: m.value for m in ENUMS[name]}


def test_constants_are_equal() -> None:
    text = HEADER.read_text(encoding="utf-8")
    assert f"#define TFC_ABI_VERSION {abi.ABI_VERSION}\n" in text
    assert f"#define TFC_MESSAGE_SIZE {abi.MESSAGE_SIZE}\n" in text
    assert f"#define TFC_MAX_SECONDS {abi.MAX_SECONDS:g} " in text.replace("1e6", "1e+06")
    assert abi.MAX_SECONDS == MOST_SECONDS


def test_every_code_is_mapped() -> None:
    assert set(library.ERROR_CLASSES) == set(errors.Code) - {errors.Code.OK}
    for code, cls in library.ERROR_CLASSES.items():
        error = library.to_exception(code, "text", peer=2, sys_errno=5)
        assert type(error) is cls and error.code == code
        assert (error.peer, error.sys_errno, str(error)) == (2, 5, "text")


def test_absent_peer_and_errno_become_none() -> None:
    error = library.to_exception(errors.Code.IO, "text")
    assert error.peer is None and error.sys_errno is None


def test_unknown_code_is_an_internal_error() -> None:
    assert isinstance(library.to_exception(99, "odd"), errors.InternalError)


def test_missing_library_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="make develop"):
        library.load(tmp_path / "libtfcollective.so")


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build a library of another version")
def test_another_abi_version_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text("int tfc_abi_version(void) { return 99; }", encoding="utf-8")
    shared = tmp_path / "old.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(shared)], check=True)
    with pytest.raises(errors.ProtocolError, match="version 99"):
        library.load(shared)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to build a library with nothing in it")
def test_an_older_library_lacks_only_what_it_lacks(tmp_path: Path) -> None:
    source = tmp_path / "old.c"
    source.write_text(f"int tfc_abi_version(void) {{ return {abi.ABI_VERSION}; }}", encoding="utf-8")
    shared = tmp_path / "old.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(shared)], check=True)
    old = library.load(shared)
    assert old.function("tfc_abi_version")() == abi.ABI_VERSION
    with pytest.raises(errors.ProtocolError, match="older than this package: it has no tfc_plan_acquire"):
        old.call("tfc_plan_acquire")


def test_an_unrelated_library_is_refused() -> None:
    with pytest.raises(errors.ProtocolError, match="not tfcollective"):
        library.Library(Path("libc.so.6"))


def test_every_transport_can_be_chosen():
    assert tuple(member.name.lower() for member in abi.Transport) == TRANSPORTS


@pytest.mark.parametrize(
    ("field", "setting"),
    [("connect_timeout", "start_timeout"), ("op_timeout", "op_timeout"), ("stall_warning", "stall_warning")],
)
def test_default_limits_agree_in_both_languages(field: str, setting: str) -> None:
    header = (HEADER.parents[2] / "capi" / "communicator_impl.h").read_text()
    (native,) = re.findall(rf"double {field}_s = ([\d.]+);", header)
    assert getattr(CommunicatorOptions(), field) == getattr(Settings(), setting) == float(native)
