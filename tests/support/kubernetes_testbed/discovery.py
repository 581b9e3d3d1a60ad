"""What ``kubectl`` asks an API server for before it sends anything: its kinds, and whether it checks fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from kubernetes_testbed.objects import RESOURCES, Object

_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
_BATCH = {"groupVersion": "batch/v1", "version": "v1"}
_GROUPS = [{"name": "batch", "versions": [_BATCH], "preferredVersion": _BATCH}]
_PLACES = {"v1": "api/v1", "batch/v1": "apis/batch/v1"}


def add_to(router: web.UrlDispatcher) -> None:
    """Serves it."""
    pages: dict[str, Object] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": _GROUPS},
        "/openapi/v3": {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in _PLACES.values()}},
    }
    for version, place in _PLACES.items():
        pages[f"/{place}"] = _resources(version)
        pages[f"/openapi/v3/{place}"] = _schema(version, place)
    for path, page in pages.items():
        router.add_get(path, _answer(page))


def _answer(page: Object) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(page)

    return answer


def _resources(version: str) -> Object:
    found = [one for one in RESOURCES.values() if one.api_version == version]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": [
            {
                "name": one.plural,
                "singularName": one.kind.lower(),
                "namespaced": one.namespaced,
                "kind": one.kind,
                "verbs": _VERBS,
            }
            for one in found
        ],
    }


def _schema(version: str, place: str) -> Object:
    """Of the whole description only what says that the server checks fields, so that the client does not."""
    group, _, number = version.rpartition("/")
    parameters = [{"name": name, "in": "query"} for name in ("dryRun", "fieldValidation")]
    paths = {}
    for one in RESOURCES.values():
        if one.api_version == version:
            kind = {"group": group, "version": number, "kind": one.kind}
            patch = {"x-kubernetes-group-version-kind": kind, "parameters": parameters, "responses": {}}
            paths[f"/{place}/namespaces/{{namespace}}/{one.plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.37.0"}, "paths": paths}
