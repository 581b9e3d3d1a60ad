"""What an API server refuses: unknown and mistyped fields by Kubernetes' schemas, and combinations that cannot be."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

from kubernetes_testbed.objects import ApiError, Object

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_FIXED = ("completionMode", "selector", "template", "podFailurePolicy", "backoffLimitPerIndex", "successPolicy")


@functools.lru_cache
def _validator(kind: str, api_version: str) -> Any:
    """The strict schema of a kind of the newest Kubernetes that kubernetes-validate knows."""
    import jsonschema
    from kubernetes_validate import utils
    from referencing import Registry, Resource

    version = utils.latest_version()
    folder = f"kubernetes-json-schema/v{version}-local-strict"
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = utils.schema_contents(f"{folder}/{kind.lower()}-{group}.json", version)
    registry = Resource.from_contents(schema) @ Registry()
    registry = Resource.from_contents(utils.schema_contents(f"{folder}/_definitions.json", version)) @ registry
    return jsonschema.Draft202012Validator(schema, registry=registry)


def check(item: Object) -> None:
    """Raises :class:`ApiError` 400 or 422 for an object that an API server would not take."""
    error = next(iter(_validator(item["kind"], item["apiVersion"]).iter_errors(item)), None)
    if error is not None:
        where = ".".join(map(str, error.absolute_path))
        raise ApiError(400, "BadRequest", f"{item['kind']} in version {item['apiVersion']}: {where}: {error.message}")
    _refuse(item, _wrong_names(item))
    if item["kind"] == "Job":
        _refuse(item, _wrong_job(item["spec"], item["metadata"].get("name", "")))


def check_change(before: Object, after: Object) -> None:
    """Raises :class:`ApiError` 422 where fields have changed that cannot."""
    if before["kind"] == "Job":
        _refuse(after, _wrong_change(before["spec"], after["spec"]))


def _refuse(item: Object, wrong: Iterator[str]) -> None:
    causes = list(wrong)
    if causes:
        name = item["metadata"].get("name", "")
        raise ApiError(422, "Invalid", f'{item["kind"]} "{name}" is invalid: {"; ".join(causes)}')


def _wrong_names(item: Object) -> Iterator[str]:
    metadata = item.get("metadata", {})
    name = metadata.get("name")
    pattern = _LABEL if item["kind"] == "Service" else rf"{_LABEL}(\.{_LABEL})*"
    if name is None and not metadata.get("generateName"):
        yield "metadata.name: Required value: name or generateName is required"
    elif name is not None and not re.fullmatch(pattern, name):
        yield f"metadata.name: Invalid value: {name!r}"
    for key, value in (metadata.get("labels") or {}).items():
        if not re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value):
            yield f"metadata.labels: Invalid value: {value!r} of {key}"


def _wrong_job(spec: Object, name: str) -> Iterator[str]:
    template = spec["template"]["spec"]
    policy = template.get("restartPolicy", "Always")
    if policy not in ("Never", "OnFailure"):
        yield f"spec.template.spec.restartPolicy: Unsupported value: {policy!r}"
    if spec.get("podFailurePolicy") and policy != "Never":
        yield "spec.podFailurePolicy: only supported with restartPolicy=Never"
    if spec.get("podFailurePolicy") and spec.get("podReplacementPolicy", "Failed") != "Failed":
        yield "spec.podReplacementPolicy: Unsupported value with podFailurePolicy: must be Failed"
    if spec.get("podReplacementPolicy", "Failed") not in ("Failed", "TerminatingOrFailed"):
        yield f"spec.podReplacementPolicy: Unsupported value: {spec['podReplacementPolicy']!r}"
    yield from _wrong_indexes(spec, name)
    if spec.get("selector") is not None and not spec.get("manualSelector"):
        yield "spec.selector: Invalid value: is set by the controller"
    for field in ("hostname", "subdomain"):
        if template.get(field) is not None and not re.fullmatch(_LABEL, template[field]):
            yield f"spec.template.spec.{field}: Invalid value: {template[field]!r}"
    yield from _wrong_pod(template)


def _wrong_indexes(spec: Object, name: str) -> Iterator[str]:
    policy, indexed = spec["template"]["spec"].get("restartPolicy"), spec.get("completionMode") == "Indexed"
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        yield "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified"
    if spec.get("backoffLimitPerIndex") is not None and not indexed:
        yield "spec.backoffLimitPerIndex: requires indexed completion mode"
    if spec.get("backoffLimitPerIndex") is not None and policy != "Never":
        yield "spec.backoffLimitPerIndex: only supported with restartPolicy=Never"
    if indexed and spec.get("completions") is None:
        yield "spec.completions: Required value: when completion mode is Indexed"
    if indexed and len(f"{name}-{(spec.get('completions') or 1) - 1}") > 63:
        yield "metadata.name: host names of the pods would be longer than 63 characters"


def _wrong_pod(spec: Object) -> Iterator[str]:
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    names = [container["name"] for container in containers]
    if len(set(names)) < len(names):
        yield "containers: Duplicate value"
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for container in containers:
        if not container.get("image"):
            yield f"containers[{container['name']}].image: Required value"
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                yield f"containers[{container['name']}].volumeMounts: Not found: {mount['name']!r}"
        for kind, amounts in (container.get("resources") or {}).items():
            for resource, amount in amounts.items() if kind in ("limits", "requests") else ():
                if not re.fullmatch(r"\d+(\.\d+)?([munKMGTPE]i?|e\d+)?", str(amount)):
                    yield f"containers[{container['name']}].resources.{kind}.{resource}: Invalid value: {amount!r}"


def _wrong_change(before: Object, after: Object) -> Iterator[str]:
    for field in _FIXED:
        started = not before.get("suspend") or field != "template"
        if before.get(field) != after.get(field) and started:
            yield f"spec.{field}: Invalid value: field is immutable"
    together = after.get("completions") == after.get("parallelism")
    if before.get("completions") != after.get("completions") and not (
        after.get("completionMode") == "Indexed" and together
    ):
        yield "spec.completions: Invalid value: may only be changed together with parallelism, of an Indexed Job"
