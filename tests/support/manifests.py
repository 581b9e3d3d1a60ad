"""Checks manifests without a cluster: Kubernetes' own kinds against its schemas, custom kinds against those of their
projects (tests/data/kubernetes). Unknown fields are refused."""

import functools
import json
from pathlib import Path

import yaml

DATA = Path(__file__).resolve().parents[1] / "data" / "kubernetes" / "crds.json"
VERSION = "1.34"  # as old as clusters are that are still cared for


@functools.cache
def custom_kinds():
    """By "GROUP/VERSION KIND": what checks an object of the kind."""
    from jsonschema import Draft202012Validator

    document = json.loads(DATA.read_text())
    return {
        kind: Draft202012Validator({"$defs": document["$defs"], **schema}) for kind, schema in document["kinds"].items()
    }


def problems(one):
    """What is wrong with an object, a line each."""
    import kubernetes_validate

    kind = f"{one.get('apiVersion')} {one.get('kind')}"
    if kind in custom_kinds():
        found = custom_kinds()[kind].iter_errors(one)
        return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]
    try:
        kubernetes_validate.validate(one, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def read(text):
    """The objects of a manifest."""
    return list(yaml.safe_load_all(text))


def pod_templates(node):
    """Every pod template in an object."""
    if isinstance(node, dict):
        if "containers" in node.get("spec", {}):
            yield node
        for value in node.values():
            yield from pod_templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from pod_templates(value)
