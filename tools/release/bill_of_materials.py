"""The software bill of materials of a wheel: what its shared objects contain besides our own code (CycloneDX 1.6)."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import uuid
from collections.abc import Sequence
from typing import Any

_LLVM_LICENSE = {"expression": "Apache-2.0 WITH LLVM-exception"}
_GLIBC_LICENSE = {
    "license": {"name": "LGPL-2.1-or-later with the permission to link and distribute without restriction"}
}


def document(version: str, machine: str, tensorflows: Sequence[str]) -> dict[str, Any]:
    """The document for one wheel.

    Args:
        version: of tfcollective.
        machine: the wheel's processor.
        tensorflows: the versions whose headers the GPU kernels of this wheel include.
    """
    component = {
        "type": "library",
        "bom-ref": "tfcollective",
        "name": "tfcollective",
        "version": version,
        "purl": f"pkg:pypi/tfcollective@{version}",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    components = [*_of_the_compiler(), *map(_headers, tensorflows)]
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'tfcollective-{version}-{machine}-{epoch}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).isoformat(),
            "component": component,
        },
        "components": components,
        "dependencies": [
            {"ref": "tfcollective", "dependsOn": [part["bom-ref"] for part in components]},
            *({"ref": part["bom-ref"]} for part in components),
        ],
    }


def _of_the_compiler() -> list[dict[str, Any]]:
    """The run-time libraries that Zig links statically into both shared objects."""
    zig = os.environ["TFC_ZIG"]
    zig_version = subprocess.check_output([zig, "version"], text=True).strip()
    clang = re.search(r"clang version (\S+)", subprocess.check_output([zig, "cc", "--version"], text=True))
    if clang is None:
        raise SystemExit(f"error: {zig} cc --version does not name clang's version")
    llvm = [
        _part(name, clang[1], _LLVM_LICENSE, f"pkg:generic/{name}@{clang[1]}", description)
        for name, description in (
            ("libc++", "C++ standard library"),
            ("libc++abi", "C++ run-time support"),
            ("libunwind", "unwinding of exceptions"),
        )
    ]
    glibc = "functions of libc_nonshared.a, from the sources in Zig; the C library itself is the system's"
    return [
        *llvm,
        _part("compiler-rt", zig_version, {"license": {"id": "MIT"}}, f"pkg:generic/zig@{zig_version}", "Zig's own"),
        _part("glibc", "2.28", _GLIBC_LICENSE, "pkg:generic/glibc@2.28", glibc),
    ]


def _headers(version: str) -> dict[str, Any]:
    description = "code of its headers, and of Abseil's, Eigen's and Protocol Buffers' among them, in the GPU kernels"
    license_ = {"expression": "Apache-2.0 AND MPL-2.0 AND BSD-3-Clause"}
    return _part("tensorflow", version, license_, f"pkg:pypi/tensorflow@{version}", description)


def _part(name: str, version: str, license_: dict[str, Any], purl: str, description: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": f"{name}-{version}",
        "name": name,
        "version": version,
        "description": description,
        "purl": purl,
        "licenses": [license_],
    }
