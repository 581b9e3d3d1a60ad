"""The REST API of Kubernetes, as far as clients of this project use it, served by aiohttp."""

from __future__ import annotations

import asyncio
import copy
import json
import secrets as tokens
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from kubernetes_testbed import discovery, port_forward, protobuf, validation
from kubernetes_testbed.objects import RESOURCES, ApiError, Change, Object, Store, fields_match, labels_match, now
from kubernetes_testbed.pods import Kubelets

_BASES = {"v1": "/api/v1", "batch/v1": "/apis/batch/v1"}
_BOOKMARK_S = 1.0  # a real server sends one about every minute


class Api:
    """Answers requests with the bearer token `token`. `denied` are pairs of a verb (get, list, watch, create, update,
    patch, delete) and a plural: the user lacks these rights. While `away`, every connection is cut."""

    def __init__(self, store: Store, kubelets: Kubelets, evict: Callable[[Object], None]) -> None:
        self.token = tokens.token_hex(16)
        self.denied: set[tuple[str, str]] = set()
        self.away = False
        self._store, self._kubelets, self._evict = store, kubelets, evict
        self._streams: set[asyncio.Task[Any]] = set()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=2**24)
        app.router.add_get("/version{slash:/?}", self._version)
        discovery.add_to(app.router)
        app.router.add_get("/api/v1/namespaces/{name}", self._namespace)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        for base in _BASES.values():
            for prefix in ("", "/namespaces/{namespace}"):
                app.router.add_route("*", f"{base}{prefix}/{{plural}}", self._collection)
                app.router.add_route("*", f"{base}{prefix}/{{plural}}/{{name}}", self._single)
                app.router.add_route("*", f"{base}{prefix}/{{plural}}/{{name}}/{{part}}", self._part)
        return app

    def interrupt(self) -> None:
        """Cuts every watch and every stream of logs; `away` says whether they may come back."""
        for task in list(self._streams):
            task.cancel()

    # ---- requests ----

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.away:
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPServiceUnavailable
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _answer(ApiError(401, "Unauthorized", "Unauthorized").status(), 401)
        try:
            return await handler(request)
        except ApiError as error:
            return _answer(error.status(), error.code)
        except web.HTTPNotFound:
            return _answer(ApiError(404, "NotFound", "the server could not find the requested resource").status(), 404)

    async def _version(self, _: web.Request) -> web.Response:
        about = dict.fromkeys(("buildDate", "compiler", "gitCommit", "gitTreeState", "goVersion"), "")
        return _answer({**about, "major": "1", "minor": "37", "gitVersion": "v1.37.0", "platform": "linux/amd64"})

    async def _namespace(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name != "default":
            raise ApiError(404, "NotFound", f'namespaces "{name}" not found')
        return _answer({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    async def _review(self, request: web.Request) -> web.Response:
        """Says whether the user has a right."""
        review = await request.json()
        wanted = review["spec"]["resourceAttributes"]
        plural = "/".join(filter(None, (wanted["resource"], wanted.get("subresource"))))
        return _answer({**review, "status": {"allowed": (wanted["verb"], plural) not in self.denied}}, 201)

    async def _collection(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = self._resource(request)
        query = request.query
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        if request.method == "POST":
            return self._create(plural, namespace or "", await _body(request), keep="dryRun" not in query)
        if request.method == "GET" and query.get("watch", "").lower() in ("true", "1"):
            self._allow("watch", plural)
            return await self._stream(request, self._watch(plural, namespace, query))
        self._allow("list", plural)
        found = self._store.list(plural, namespace, labels, fields)
        if request.method == "DELETE":
            for item in found:
                self._delete(plural, item, request, await _options(request))
        resource = RESOURCES[plural]
        for item in found:
            item.pop("kind", None)
            item.pop("apiVersion", None)
        metadata = {"resourceVersion": self._store.version}
        listing = {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": found,
        }
        return _answer(listing)

    async def _single(self, request: web.Request) -> web.Response:
        plural, namespace = self._resource(request)
        item = self._store.get(plural, namespace or "", request.match_info["name"]) if request.method != "PATCH" else {}
        if request.method == "GET":
            self._allow("get", plural)
            return _answer(item)
        if request.method == "DELETE":
            self._allow("delete", plural)
            self._delete(plural, item, request, await _options(request))
            return _answer(self._store.find(plural, namespace or "", item["metadata"]["name"]) or item)
        if request.method == "PUT":
            self._allow("update", plural)
            body = await request.json()
            sent = (body.get("metadata") or {}).get("resourceVersion")
            if sent not in (None, item["metadata"]["resourceVersion"]):
                raise ApiError(
                    409, "Conflict", "the object has been modified; please apply your changes to the latest version"
                )
            return self._change(plural, item, lambda current: body)
        return await self._patch(request, plural, namespace or "")

    async def _part(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = self._resource(request)
        part, item = request.match_info["part"], self._store.get(plural, namespace or "", request.match_info["name"])
        if (plural, part) == ("pods", "log"):
            self._allow("get", "pods/log")
            return await self._log(request, item)
        if (plural, part) == ("pods", "portforward"):
            self._allow("create", "pods/portforward")
            netns = self._kubelets.sandboxes[item["metadata"]["uid"]].plug.netns
            return await port_forward.serve(request, netns, int(request.query["ports"]))
        if (plural, part) == ("pods", "eviction") and request.method == "POST":
            self._allow("create", "pods/eviction")
            self._evict(item)
            return _answer({"kind": "Status", "apiVersion": "v1", "status": "Success"}, 201)
        if part == "status" and request.method == "GET":
            return _answer(item)
        raise ApiError(404, "NotFound", f"{plural}/{part} is not served here")

    # ---- verbs ----

    def _resource(self, request: web.Request) -> tuple[str, str | None]:
        plural = request.match_info["plural"]
        resource = RESOURCES.get(plural)
        if resource is None or not request.path.startswith(_BASES[resource.api_version] + "/"):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        namespace = request.match_info.get("namespace")
        return plural, namespace if resource.namespaced else ""

    def _allow(self, verb: str, plural: str) -> None:
        if (verb, plural) in self.denied:
            raise ApiError(403, "Forbidden", f'{plural} is forbidden: User "test" cannot {verb} resource "{plural}"')

    def create(self, plural: str, namespace: str, body: Object, keep: bool = True) -> Object:
        """Checks an object and adds it; in a dry run it is not kept. Raises :class:`ApiError`."""
        resource = RESOURCES[plural]
        item = copy.deepcopy(body)
        item = {
            "apiVersion": item.pop("apiVersion", resource.api_version),
            "kind": item.pop("kind", resource.kind),
            **item,
        }
        if (item["kind"], item["apiVersion"]) != (resource.kind, resource.api_version):
            raise ApiError(400, "BadRequest", f"{item['apiVersion']} {item['kind']} is no {resource.kind}")
        item.setdefault("metadata", {}).pop("creationTimestamp", None)
        validation.check(item)
        _fill_in(item)
        return self._store.create(plural, namespace, item, keep=keep)

    def _create(self, plural: str, namespace: str, body: Object, keep: bool = True) -> web.Response:
        self._allow("create", plural)
        return _answer(self.create(plural, namespace, body, keep), 201)

    def _delete(self, plural: str, item: Object, request: web.Request, options: Object) -> None:
        query = request.query
        propagation = options.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
        grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        self._store.delete(plural, item, propagation, None if grace is None else float(grace))

    async def _patch(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        """JSON patches and merge patches. A strategic merge is treated as a merge: it replaces lists."""
        self._allow("patch", plural)
        body, name = await request.json(), request.match_info["name"]
        if isinstance(body, list) != (request.content_type == "application/json-patch+json"):
            raise ApiError(400, "BadRequest", f"{request.content_type}: a {type(body).__name__} is no such patch")
        item = self._store.find(plural, namespace, name)
        if item is None and "apply-patch" in request.content_type:
            return self._create(plural, namespace, body)
        item = item or self._store.get(plural, namespace, name)
        if isinstance(body, list):
            return self._change(plural, item, lambda current: _json_patched(current, body))
        return self._change(plural, item, lambda current: _merged(current, body))

    def _change(self, plural: str, item: Object, edit: Callable[[Object], Object]) -> web.Response:
        before = copy.deepcopy(item)
        after = edit(copy.deepcopy(item))
        kept = {name: before[name] for name in ("kind", "apiVersion", "status") if name in before}
        metadata = before["metadata"] | {
            name: value
            for name, value in after["metadata"].items()
            if name in ("labels", "annotations", "finalizers", "ownerReferences")
        }
        after = {**after, **kept, "metadata": metadata}
        validation.check(after)
        validation.check_change(before, after)

        def change(current: Object) -> None:
            current.clear()
            current.update(after)

        metadata = item["metadata"]
        return _answer(self._store.update(plural, metadata.get("namespace", ""), metadata["name"], change))

    # ---- streams ----

    async def _stream(
        self, request: web.Request, chunks: AsyncIterator[bytes], kind: str = "application/json"
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": kind})
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams.discard(task)
        return response

    async def _watch(self, plural: str, namespace: str | None, query: Any) -> AsyncIterator[bytes]:
        """One line for each change; without a version to begin with, first one for each object that exists. Where the
        client allows bookmarks, they say how far it has seen."""
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        since = query.get("resourceVersion", "")
        end = asyncio.get_running_loop().time() + float(query.get("timeoutSeconds") or 1800)
        if since in ("", "0"):
            since = self._store.version
            for item in self._store.list(plural, namespace, labels, fields):
                yield _line("ADDED", item)
        changes = self._store.watch(since)
        coming: asyncio.Future[Change] = asyncio.ensure_future(changes.__anext__())
        try:
            while (left := end - asyncio.get_running_loop().time()) > 0:
                version = self._store.version
                done, _ = await asyncio.wait([coming], timeout=min(left, _BOOKMARK_S))
                if not done:
                    if query.get("allowWatchBookmarks", "").lower() in ("true", "1"):
                        yield _bookmark(plural, version)
                    continue
                try:
                    change = coming.result()
                except ApiError as error:
                    yield json.dumps({"type": "ERROR", "object": error.status()}).encode() + b"\n"
                    return
                coming = asyncio.ensure_future(changes.__anext__())
                item = change.object
                mine = change.plural == plural and namespace in (None, item["metadata"].get("namespace", ""))
                if mine and labels_match(item, labels) and fields_match(item, fields):
                    yield _line(change.type, item)
        finally:
            coming.cancel()

    async def _log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        query, names = request.query, [container["name"] for container in pod["spec"]["containers"]]
        initial = [container["name"] for container in pod["spec"].get("initContainers", [])]
        name = query.get("container") or names[0]
        if len(names) > 1 and "container" not in query:
            raise ApiError(400, "BadRequest", f"a container name must be specified, choose one of: {names}")
        if name not in [*names, *initial]:
            raise ApiError(400, "BadRequest", f"container {name} is not valid for pod {pod['metadata']['name']}")
        runs = self._kubelets.containers.get((pod["metadata"]["name"], name), [])
        runs = runs[:-1] if query.get("previous", "").lower() == "true" else runs
        if not runs:
            raise ApiError(
                400,
                "BadRequest",
                f'container "{name}" in pod "{pod["metadata"]["name"]}" is waiting to start: ContainerCreating',
            )
        node = pod["spec"].get("nodeName")
        if node in self._kubelets.lost:
            raise ApiError(500, "InternalError", f"Get https://{node}:10250/containerLogs: dial tcp: i/o timeout")
        log = runs[-1].log

        async def lines() -> AsyncIterator[bytes]:
            stamped, since = query.get("timestamps", "").lower() == "true", query.get("sinceTime", "")
            tail = query.get("tailLines")
            seen = max(len(log.lines) - int(tail), 0) if tail is not None else 0
            while True:
                for moment, line in log.lines[seen:]:
                    if moment >= since:
                        yield f"{moment} ".encode() + line if stamped else line
                    seen += 1
                if query.get("follow", "").lower() != "true" or (log.ended and seen >= len(log.lines)):
                    return
                await log.more(seen)

        return await self._stream(request, lines(), "text/plain")


def _answer(body: Object, code: int = 200) -> web.Response:
    return web.json_response(body, status=code)


def _line(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _bookmark(plural: str, version: str) -> bytes:
    resource = RESOURCES[plural]
    metadata = {"resourceVersion": version}
    return _line("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata})


async def _body(request: web.Request) -> Object:
    sent = await request.read()
    return protobuf.secret_of(sent) if request.content_type == protobuf.CONTENT_TYPE else dict(json.loads(sent))


async def _options(request: web.Request) -> Object:
    return dict(await request.json()) if request.can_read_body else {}


def _fill_in(item: Object) -> None:
    """The defaults that readers of objects rely on."""
    if item["kind"] == "Secret":
        import base64

        text = item.pop("stringData", None) or {}
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in text.items()}
        item["data"] = (item.get("data") or {}) | encoded
        item["type"] = item.get("type") or "Opaque"
    if item["kind"] == "Pod":
        item["status"] = {"phase": "Pending"}
    if item["kind"] == "Job":
        item["status"] = {}
        item["spec"].setdefault("parallelism", 1)
        item["spec"].setdefault("completionMode", "NonIndexed")
        if item["spec"].get("completions") is None and item["spec"]["parallelism"] == 1:
            item["spec"]["completions"] = 1
    if item["kind"] == "Event":
        item.setdefault("firstTimestamp", now())


def _merged(current: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _json_patched(item: Object, steps: list[Object]) -> Object:
    """JSON patch (RFC 6902): add, replace, remove and test."""
    for step in steps:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].lstrip("/").split("/")]
        place: Any = item
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place.setdefault(part, {})
        key: Any = int(last) if isinstance(place, list) and last != "-" else last
        if step["op"] == "test":
            if place[key] != step["value"]:
                raise ApiError(422, "Invalid", f"test of {step['path']} failed")
        elif step["op"] == "remove":
            del place[key]
        elif step["op"] in ("add", "replace"):
            if isinstance(place, list):
                place[key:key] = [step["value"]] if step["op"] == "add" and key != "-" else []
                if key == "-":
                    place.append(step["value"])
                elif step["op"] == "replace":
                    place[key] = step["value"]
            else:
                place[key] = step["value"]
        else:
            raise ApiError(422, "Invalid", f"unknown operation {step['op']}")
    return item
