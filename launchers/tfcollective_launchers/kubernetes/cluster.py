"""The cluster, as this user may see and change it: Kubernetes' official client, with deadlines and our errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tfcollective.launcher import TIMING, ConfigError, LaunchError, Timing, environ_snapshot, on_thread, poll
from tfcollective_launchers.kubernetes.kinds.common import Object
from tfcollective_launchers.kubernetes.options import KubernetesOptions

T = TypeVar("T")

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_ENDINGS = {"Job": "job", "Service": "service", "Secret": "secret"}
_GONE, _NOT_FOUND = 410, 404
_OVERLOADED = (429, 503, 504)
_AGAIN_S = 1.0


class ClusterError(LaunchError):
    """The cluster does not do what was asked, or cannot be reached; ``status`` is that of HTTP, or None."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def import_client() -> Any:
    """The package; ConfigError names the extra."""
    try:
        import kubernetes
    except ImportError as error:
        raise ConfigError(
            f"the launcher 'kubernetes' needs Kubernetes' client: pip install 'tfcollective[kubernetes]' ({error})"
        ) from error
    return kubernetes


class Cluster:
    """A namespace of a cluster.

    Attributes:
        namespace: its name.
        inside: whether this process runs in one of its pods.
    """

    def __init__(self, configuration: Any, namespace: str, *, inside: bool, timing: Timing = TIMING) -> None:
        self.namespace = namespace
        self.inside = inside
        self._package = import_client()
        self._configuration = configuration
        self._limits = timing.connect, timing.platform_call
        self._away = timing.cluster_away
        api = self._package.client.ApiClient(configuration)
        self._core = self._package.client.CoreV1Api(api)
        self._batch = self._package.client.BatchV1Api(api)

    @classmethod
    def connect(cls, options: KubernetesOptions) -> Cluster:
        """The cluster of the options, of the kubeconfig, or the one in whose pod this process runs. ConfigError when
        there is none."""
        package = import_client()
        configuration = package.client.Configuration()
        file = options.kubeconfig or environ_snapshot().get("KUBECONFIG")  # the client reads it when it is imported
        try:
            package.config.load_kube_config(
                config_file=file, context=options.context, client_configuration=configuration
            )
            contexts, active = package.config.list_kube_config_contexts(config_file=file)
            named = [one for one in contexts if one["name"] == options.context]
            chosen = named[0] if named else active
            namespace = options.namespace or chosen["context"].get("namespace") or "default"
            return cls(configuration, namespace, inside=False)
        except package.config.ConfigException as error:
            if options.kubeconfig is not None or options.context is not None:
                raise ConfigError(f"--kubeconfig, --context: {error}") from error
            why = error
        try:
            package.config.load_incluster_config(client_configuration=configuration)
        except package.config.ConfigException as error:
            raise ConfigError(
                f"no cluster was found: give --kubeconfig F, or set KUBECONFIG ({why}); and this process runs in no "
                f"pod ({error})"
            ) from error
        return cls(configuration, options.namespace or _own_namespace(), inside=True)

    # ---- the user in it --------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Returns the cluster's address and version; raises ClusterError where it does not answer."""
        api = self._package.client.VersionApi(self._core.api_client)
        version = self._call("asking for the version", lambda: api.get_code(_request_timeout=self._limits))
        return f"{self._configuration.host}, Kubernetes {version.git_version}, namespace {self.namespace}"

    def may(self, verb: str, resource: str, group: str) -> bool:
        """True if this user has a right: on a resource, or RESOURCE/SUBRESOURCE, of this API group."""
        name, _, part = resource.partition("/")
        wanted = {"namespace": self.namespace, "verb": verb, "group": group, "resource": name, "subresource": part}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        api = self._package.client.AuthorizationV1Api(self._core.api_client)
        ask = partial(api.create_self_subject_access_review, review, _request_timeout=self._limits)
        return bool(self._call(f"asking for the right to {verb} {resource}", ask).status.allowed)

    # ---- objects ---------------------------------------------------------------------------------------------------

    def create(self, one: Object, *, dry_run: bool = False) -> Object:
        """Adds an object, or only has the cluster check it; returns it as the cluster has it."""
        kind = one["kind"]
        api = self._batch if kind == "Job" else self._core
        method = getattr(api, f"create_namespaced_{_ENDINGS[kind]}")
        what = f"creating the {kind} {one['metadata']['name']}"
        checked = {"dry_run": "All"} if dry_run else {}
        call = partial(method, self.namespace, one, **checked, _request_timeout=self._limits)
        return self._plain(self._call(what, call))

    def patch_job(self, name: str, change: Sequence[Object]) -> None:
        """Changes a Job as a JSON patch says, which may come twice: clients of all versions send a list as one."""

        def patch() -> Any:
            return self._batch.patch_namespaced_job(name, self.namespace, list(change), _request_timeout=self._limits)

        self._call_until_heard(f"changing the Job {name}", patch)

    def job(self, name: str) -> Object | None:
        """A Job, or None."""
        return self._found(f"asking for the Job {name}", self._batch.read_namespaced_job, name)

    def secret(self, name: str) -> Object | None:
        """A Secret, or None."""
        return self._found(f"asking for the Secret {name}", self._core.read_namespaced_secret, name)

    def delete_job(self, name: str, hurried: Callable[[], bool] = lambda: False) -> None:
        """Deletes a Job, then its pods gracefully, and what it owns; does nothing if it is gone. Retries while the API
        server cannot be reached, unless ``hurried``.
        """

        def delete() -> Any:
            return self._batch.delete_namespaced_job(
                name, self.namespace, propagation_policy="Background", _request_timeout=self._limits
            )

        try:
            self._call_until_heard(f"deleting the Job {name}", delete, hurried)
        except ClusterError as error:
            if error.status != _NOT_FOUND:
                raise

    # ---- pods ------------------------------------------------------------------------------------------------------

    def pods(self, selector: str) -> tuple[list[Object], str]:
        """The pods with these labels, and the version of the list, from which :meth:`changes` continues."""

        def ask() -> Any:
            return self._core.list_namespaced_pod(
                self.namespace, label_selector=selector, _request_timeout=self._limits
            )

        found = self._plain(self._call("listing pods", ask))
        return list(found.get("items") or ()), str(found["metadata"].get("resourceVersion", ""))

    def changes(self, selector: str, version: str, seconds: float) -> Iterator[tuple[str, Object]]:
        """Yields what happens to these pods after ``version``, as (``ADDED``, pod) and so on, for at most so long; the
        pod of a ``BOOKMARK`` has a version alone. Raises ClusterError, with status 410 when the version is too old.
        """
        ask: Any = self._core.list_namespaced_pod
        connect, reply = self._limits

        def begin() -> Any:
            return ask(
                self.namespace,
                label_selector=selector,
                resource_version=version,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=max(1, int(seconds)),
                _preload_content=False,
                _request_timeout=(connect, seconds + reply),
            )

        response = self._call("watching pods", begin)
        try:
            for line in self._lines(response):
                kind, one = event_of(line)
                if kind == "ERROR":
                    raise ClusterError(f"watching pods: {one.get('message', one)}", one.get("code"))
                yield kind, one
        finally:
            response.close()
            response.release_conn()

    def log(self, pod: str, lines: int | None = None) -> str:
        """Returns the output of a pod, or its last lines; an empty text if it has not begun."""
        tail = {} if lines is None else {"tail_lines": lines}

        def ask() -> Any:
            return self._core.read_namespaced_pod_log(
                pod, self.namespace, **tail, _preload_content=False, _request_timeout=self._limits
            )

        response = self._call(f"reading the log of {pod}", ask)
        return bytes(response.data).decode("utf-8", "replace")

    def open_port(self, pod: str, port: int) -> Any:
        """A connection to a port of a pod that leads through the API server: a socket. The client opens it without a
        limit of its own, so that is done on a thread."""
        what = f"connecting to the pod {pod}"
        # While it opens the connection, the client changes the ApiClient that it uses: each has one of its own.
        core = self._package.client.CoreV1Api(self._package.client.ApiClient(self._configuration))

        def begin() -> Any:
            return self._package.stream.portforward(
                core.connect_get_namespaced_pod_portforward, pod, self.namespace, ports=str(port)
            )

        opened = on_thread(lambda: self._call(what, begin).socket(port), "tfc-port-forward")
        try:
            return opened.result(sum(self._limits))
        except FutureTimeoutError as error:
            opened.add_done_callback(_close_late)
            raise ClusterError(f"{what}: the API server gives no answer within {sum(self._limits):g} s") from error

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _found(self, what: str, method: Callable[..., Any], name: str) -> Object | None:
        try:
            return self._plain(self._call(what, lambda: method(name, self.namespace, _request_timeout=self._limits)))
        except ClusterError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def _plain(self, one: Any) -> Object:
        plain: Object = self._core.api_client.sanitize_for_serialization(one)
        return plain

    def _lines(self, response: Any) -> Iterator[bytes]:
        rest = b""
        try:
            for part in response.stream(amt=None, decode_content=False):
                *whole, rest = (rest + part).split(b"\n")
                yield from (line for line in whole if line.strip())
        except Exception as error:  # of several libraries
            raise ClusterError(f"watching pods: {error}") from error

    def _call_until_heard(self, what: str, work: Callable[[], T], hurried: Callable[[], bool] = lambda: False) -> T:
        """Makes an idempotent call, and retries it while the API server cannot be reached."""
        failures: list[ClusterError] = []

        def once() -> tuple[T] | None:
            try:
                return (self._call(what, work),)
            except ClusterError as error:
                if hurried() or not (error.status is None or error.status in _OVERLOADED):
                    raise
                failures.append(error)
                return None

        found = poll(once, self._away, _AGAIN_S)
        if found is None:
            raise failures[-1]
        return found[0]

    def _call(self, what: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except self._package.client.ApiException as error:
            raise ClusterError(f"{what} in the namespace {self.namespace}: {_reason(error)}", error.status) from error
        except Exception as error:  # of several libraries: the network, certificates, the credentials' plugin
            raise ClusterError(f"{what}: {type(error).__name__}: {error}") from error


def event_of(line: bytes) -> tuple[str, Object]:
    """Returns the event in a line of a watch; ClusterError for any other line, as from a proxy in between."""
    try:
        event = json.loads(line)
        kind, one = event["type"], event["object"]
        if kind != "ERROR":
            one["metadata"]["resourceVersion"]
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"watching pods: expected an event, got {line[:200]!r}") from error
    return kind, one


def _close_late(opened: Future[Any]) -> None:
    if opened.exception() is None:
        opened.result().close()


def _own_namespace() -> str:
    with suppress(OSError):
        return _NAMESPACE_FILE.read_text().strip()
    return "default"


def _reason(error: Any) -> str:
    """Returns the API server's message."""
    with suppress(ValueError, TypeError, KeyError):
        return f"{json.loads(error.body)['message']} ({error.status})"
    return f"{error.reason} ({error.status})"


def version_is_too_old(error: ClusterError) -> bool:
    """True if a watch has to begin with a new list."""
    return error.status == _GONE
