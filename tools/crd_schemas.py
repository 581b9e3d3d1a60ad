"""Makes tests/data/kubernetes/crds.json: the schemas of the custom kinds that `tfcollective manifest` prints, from the
CustomResourceDefinitions of their projects, which come from the Go module proxy. Needs Go and PyYAML.

    python tools/crd_schemas.py

Unknown fields are refused, as the API server's strict field validation does. Descriptions are left out, and what stands
in several places (pod templates) stands once, under "$defs".
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

# Module and version, the file in it, and the kind and version that are printed.
CRDS = (
    ("sigs.k8s.io/jobset@v0.8.2", "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml", "v1alpha2"),
    ("github.com/kubeflow/trainer/v2@v2.1.0", "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml", "v1alpha1"),
    (
        "github.com/kubeflow/trainer/v2@v2.1.0",
        "manifests/base/crds/trainer.kubeflow.org_trainingruntimes.yaml",
        "v1alpha1",
    ),
    ("github.com/kubeflow/training-operator@v1.8.1", "manifests/base/crds/kubeflow.org_tfjobs.yaml", "v1"),
    ("github.com/kubeflow/mpi-operator@v0.6.0", "manifests/base/kubeflow.org_mpijobs.yaml", "v2beta1"),
)
OUT = Path(__file__).resolve().parent.parent / "tests" / "data" / "kubernetes" / "crds.json"
_SMALLEST = 200  # characters of what is worth a definition of its own
_DROPPED = ("description", "default", "example")


def main() -> None:
    """Writes the file anew."""
    kinds: dict[str, Any] = {}
    for module, path, version in CRDS:
        crd = yaml.safe_load((folder_of(module) / path).read_text())
        (found,) = (one for one in crd["spec"]["versions"] if one["name"] == version)
        schema = strict(found["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}  # the core's, which the server checks for every kind
        kinds[f"{crd['spec']['group']}/{version} {crd['spec']['names']['kind']}"] = schema
    document = {"made by": "tools/crd_schemas.py", "from": sorted({one[0] for one in CRDS}), **shared(kinds)}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(f"{OUT}: {OUT.stat().st_size >> 10} KiB")


def folder_of(module: str) -> Path:
    """Where Go keeps the module, which it fetches first."""
    said = subprocess.check_output(["go", "mod", "download", "-json", module], text=True)
    return Path(json.loads(said)["Dir"])


def strict(node: Any, *, names: bool = False) -> Any:
    """The schema as JSON schema knows it; ``names``: the keys of this mapping are names of fields."""
    if isinstance(node, list):
        return [strict(one) for one in node]
    if not isinstance(node, dict):
        return node
    if names:
        return {name: strict(one) for name, one in node.items()}
    if node.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    closed = "properties" in node and not node.get("x-kubernetes-preserve-unknown-fields")
    kept = {
        key: strict(one, names=key == "properties")
        for key, one in node.items()
        if key not in _DROPPED and not key.startswith("x-kubernetes")
    }
    return {**kept, "additionalProperties": False} if closed else kept


def shared(kinds: dict[str, Any]) -> dict[str, Any]:
    """The schemas with what they have in common under ``$defs``."""
    counts = Counter(text for schema in kinds.values() for text in texts(schema))
    often = {text for text, count in counts.items() if count > 1 and len(text) >= _SMALLEST}
    definitions: dict[str, Any] = {}

    def replace(node: Any, *, names: bool = False) -> Any:
        if isinstance(node, list):
            return [replace(one) for one in node]
        if not isinstance(node, dict):
            return node
        text = json.dumps(node, sort_keys=True)
        inner = {key: replace(one, names=not names and key == "properties") for key, one in node.items()}
        if names or text not in often:
            return inner
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        definitions[name] = inner
        return {"$ref": f"#/$defs/{name}"}

    replaced = {kind: replace(schema) for kind, schema in kinds.items()}
    return {"$defs": definitions, "kinds": replaced}


def texts(node: Any, *, names: bool = False) -> Iterator[str]:
    """Every schema inside this one, as text."""
    if isinstance(node, dict):
        if not names:
            yield json.dumps(node, sort_keys=True)
        for key, one in node.items():
            yield from texts(one, names=not names and key == "properties")
    elif isinstance(node, list):
        for one in node:
            yield from texts(one)


if __name__ == "__main__":
    main()
