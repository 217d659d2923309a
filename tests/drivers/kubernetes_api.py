"""A small API server that behaves on the wire as that of Kubernetes does, with Nodes, Pods, Secrets and a few more.

It is not Kubernetes: it is for faults that a real one shows rarely (410, empty watches, 429, answers that are lost),
and for tests where the real one was not built. It lists in pages, watches with versions and bookmarks, applies merge
patches, keeps a Pod that is deleted until its node confirms it, and collects what an owner leaves. Pods that ask for
one node by its name are bound to it when it has room.
"""

import base64
import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
import yaml

from poise_kubernetes.records import NodeObject, PodObject, amounts, left_of, requested

COLLECTIONS = (
    "nodes", "pods", "secrets", "resourcequotas", "priorityclasses", "namespaces", "configmaps", "events",
    "endpointslices", "podgroups", "resourceslices", "deviceclasses", "resourceclaims",
    "persistentvolumeclaims", "persistentvolumes", "storageclasses",
)  # fmt: skip
NO_NAMESPACE = (
    "nodes", "priorityclasses", "namespaces", "resourceslices", "deviceclasses", "persistentvolumes", "storageclasses",
)  # fmt: skip
KINDS = {"nodes": "Node", "pods": "Pod", "secrets": "Secret", "resourcequotas": "ResourceQuota"}

DEFAULT = "default-scheduler"

Object = dict[str, Any]


class Refusal(Exception):
    def __init__(self, status: int, reason: str, message: str = "", after: float = 0) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.after = status, reason, message, after


class Dropped(Exception):
    """The connection is closed without an answer."""


class KubernetesApi:
    """`fault` is asked before each call: it may raise `Refusal` or `Dropped`. `after` is asked before its answer is
    sent. A watch that finds `empties` above 0 counts it down and ends at once.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[tuple[str, str], Object]] = {name: {} for name in COLLECTIONS}
        self.calls: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], None] = lambda method, path: None
        self.after: Callable[[str, str], None] = lambda method, path: None
        self.mutate: Callable[[Object], None] = lambda pod: None  # in place of a webhook
        self.output: Callable[[str], bytes] = lambda uid: b""  # of a Pod, as its node knows it
        self.denied: set[tuple[str, str]] = set()  # verb and resource
        self.empties = 0
        self.page = 500
        self.binds = True
        self._changed = threading.Condition(threading.RLock())
        self._version, self._oldest = 1, 0
        self._events: list[tuple[int, str, str, Object, Object | None]] = []
        self._cut = 0
        owner = self

        class Handler(_Handler):
            api = owner

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    # --- its life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, file: Path, namespace: str = "ml") -> Path:
        config = {
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": namespace}}],
            "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "fake", "user": {"token": "secret"}}],
        }
        file.write_text(yaml.safe_dump(config))
        return file

    # --- what a test does to it ---------------------------------------------------------------------------------------

    def put(self, collection: str, name: str, namespace: str = "", **fields: Any) -> Object:
        """Create an object, or replace its fields."""
        with self._changed:
            there = self.objects[collection].get((namespace, name))
            if there is None:
                return self._created(collection, namespace, {"metadata": {"name": name}, **fields})
            return self._replaced(collection, {**there, **fields})

    def patch(self, collection: str, name: str, body: Object, namespace: str = "") -> Object:
        with self._changed:
            return self._replaced(collection, _merged(self._found(collection, namespace, name), body))

    def remove(self, collection: str, name: str, namespace: str = "") -> None:
        with self._changed:
            self._gone(collection, self._found(collection, namespace, name))

    def get(self, collection: str, name: str, namespace: str = "") -> Object:
        with self._changed:
            return _copy(self._found(collection, namespace, name))

    def all(self, collection: str) -> list[Object]:
        with self._changed:
            return list(self.objects[collection].values())

    def compact(self) -> None:
        """Forget what has changed: who watches from before gets 410."""
        with self._changed:
            self._oldest = self._version
            self._events.clear()
            self.cut()

    def cut(self) -> None:
        """Break the connections of all watches."""
        with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def forget_silently(self, collection: str, name: str, namespace: str = "") -> None:
        """Delete an object in a way that no watch is told."""
        with self._changed:
            del self.objects[collection][namespace, name]

    # --- calls --------------------------------------------------------------------------------------------------------

    def call(self, method: str, parts: list[str], query: dict[str, str], body: Object | None) -> Object:
        collection, namespace, name, below = _place(parts)
        if collection == "version":
            return {"major": "1", "minor": "20", "gitVersion": "v1.20-fake"}
        if collection == "selfsubjectaccessreviews":
            assert body is not None
            of = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
            return {"status": {"allowed": (of["verb"], resource) not in self.denied}}
        if parts == ["apis", "resource.k8s.io", "v1"]:
            return {"kind": "APIResourceList"}
        if collection not in self.objects:
            raise Refusal(404, "NotFound", f"no {collection}")
        verb = {"GET": "get" if name else "list", "POST": "create", "DELETE": "delete", "PATCH": "patch"}[method]
        if (verb, collection) in self.denied:
            raise Refusal(403, "Forbidden", f"{collection} is forbidden: cannot {verb}")
        with self._changed:
            match verb:
                case "get" if below == "log":
                    return {"raw": self.output(self._found(collection, namespace, name)["metadata"]["uid"]).decode()}
                case "get":
                    return self._found(collection, namespace, name)
                case "list":
                    return self._listed(collection, namespace, query)
                case "create" if below == "binding":
                    assert body is not None
                    return self._bound(namespace, name, body)
                case "create" if query.get("dryRun"):
                    assert body is not None
                    self._check(namespace, body)
                    return body
                case "create":
                    assert body is not None
                    return self._created(collection, namespace, body)
                case "patch":
                    assert body is not None
                    one = self._found(collection, namespace, name)
                    if (uid := body.get("metadata", {}).get("uid")) and uid != one["metadata"]["uid"]:
                        raise Refusal(409, "Conflict", "another uid")
                    if (read := body.get("metadata", {}).get("resourceVersion")) and read != one["metadata"][
                        "resourceVersion"
                    ]:
                        raise Refusal(409, "Conflict", "it has changed")
                    if collection == "resourceclaims":
                        body = _of_claim(one, body, below)
                    return self._replaced(collection, _merged(one, body))
                case _:
                    return self._deleted(collection, self._found(collection, namespace, name), body or {}, query)

    def watch(self, collection: str, namespace: str, query: dict[str, str], send: Callable[[Object], None]) -> None:
        """Send events until the time is over, or the connection is cut."""
        seen, until = int(query.get("resourceVersion") or 0), time.monotonic() + float(query["timeoutSeconds"])
        with self._changed:
            cut = self._cut
            if self.empties:
                self.empties -= 1
                return
        while True:
            with self._changed:
                if self._cut != cut:
                    raise Dropped
                gone, events = seen < self._oldest, [event for event in self._events if event[0] > seen]
                if not (gone or events or time.monotonic() > until):
                    self._changed.wait(0.2)
                    continue
            if gone:
                send({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})
                return
            for version, of, kind, one, before in events:  # who reads slowly holds nobody up
                seen = version
                if of == collection and (told := _told(kind, one, before, namespace, query)) is not None:
                    send(told)
            if query.get("allowWatchBookmarks") and events:
                send({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen)}}})
            if time.monotonic() > until:
                return

    # --- objects ------------------------------------------------------------------------------------------------------

    def _found(self, collection: str, namespace: str, name: str) -> Object:
        one = self.objects[collection].get((namespace if collection not in NO_NAMESPACE else "", name))
        if one is None:
            raise Refusal(404, "NotFound", f'{collection} "{name}" not found')
        return one

    def _listed(self, collection: str, namespace: str, query: dict[str, str]) -> Object:
        after, limit = query.get("continue", ""), min(self.page, int(query.get("limit") or 10**6))
        if after and int(after.partition("/")[0]) < self._oldest:
            raise Refusal(410, "Expired", "the list is too old")
        every = sorted(self.objects[collection].items())
        every = [(key, one) for key, one in every if _selected(one, namespace, query)]
        rest = [(key, one) for key, one in every if not after or "/".join(key) > after.partition("/")[2]]
        version = after.partition("/")[0] if after else str(self._version)
        metadata = {"resourceVersion": version}
        if len(rest) > limit:
            metadata["continue"] = f"{version}/{'/'.join(rest[limit - 1][0])}"
        return {"kind": f"{KINDS.get(collection, '')}List", "metadata": metadata, "items": [o for _, o in rest[:limit]]}

    def _created(self, collection: str, namespace: str, body: Object) -> Object:
        namespace = "" if collection in NO_NAMESPACE else namespace
        key = namespace, body["metadata"]["name"]
        if key in self.objects[collection]:
            raise Refusal(409, "AlreadyExists", f'{collection} "{key[1]}" already exists')
        if collection == "pods":
            self._check(namespace, body)
        one = _copy(body)
        one["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": _moment()}
        if namespace:
            one["metadata"]["namespace"] = namespace
        if collection == "pods":
            one.setdefault("status", {}).setdefault("phase", "Pending")
            self.mutate(one)
        self._changed_to(collection, "ADDED", one, None)
        if collection in ("pods", "nodes"):
            self._bind_all()
        return one

    def _check(self, namespace: str, body: Object) -> None:
        """Refuse a Pod beyond a quota of CPUs, or one that a profile of Pod Security does not allow."""
        space = self.objects["namespaces"].get(("", namespace), {"metadata": {}})["metadata"].get("labels", {})
        if space.get("pod-security.kubernetes.io/enforce") == "restricted" and not _is_restricted(body["spec"]):
            why = f'pods "{body["metadata"]["name"]}" is forbidden: violates PodSecurity "restricted:latest": '
            raise Refusal(403, "Forbidden", f"{why}allowPrivilegeEscalation != false")
        for (space, name), quota in self.objects["resourcequotas"].items():
            there = [one for (of, _), one in self.objects["pods"].items() if of == space == namespace]
            pods = [pod for pod in (msgspec.convert(one, PodObject) for one in there) if not pod.ended]
            used = sum(requested(pod)["cpu"] for pod in pods)
            hard = amounts(quota.get("spec", {}).get("hard")).get("requests.cpu")
            asked = requested(msgspec.convert({"metadata": {}, **body}, PodObject)).get("cpu", 0)
            if space == namespace and hard is not None and used + asked > 1000 * hard:
                message = f"exceeded quota: {name}, requested: requests.cpu={asked}m, used: requests.cpu={used}m"
                raise Refusal(403, "Forbidden", message)

    def _replaced(self, collection: str, after: Object) -> Object:
        one = _copy(after)
        if collection == "secrets" and (plain := one.pop("stringData", None)):
            one["data"] = one.get("data", {}) | {of: base64.b64encode(v.encode()).decode() for of, v in plain.items()}
        metadata = one["metadata"]
        before = self.objects[collection][metadata.get("namespace", ""), metadata["name"]]
        self._changed_to(collection, "MODIFIED", one, before)
        if collection in ("pods", "nodes"):
            self._bind_all()
        return one

    def _deleted(self, collection: str, one: Object, body: Object, query: dict[str, str]) -> Object:
        if (uid := (body.get("preconditions") or {}).get("uid")) and uid != one["metadata"]["uid"]:
            raise Refusal(409, "Conflict", "another uid")
        own = one.get("spec", {}).get("terminationGracePeriodSeconds", 30) if collection == "pods" else 0
        asked = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        grace = own if asked is None else int(asked)
        ended = one.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if collection != "pods" or grace == 0 or ended or not one["spec"].get("nodeName"):
            self._gone(collection, one)
            return {"kind": "Status", "status": "Success"}
        since = one["metadata"].get("deletionGracePeriodSeconds")
        more = {"deletionTimestamp": _moment(), "deletionGracePeriodSeconds": min(grace, since or grace)}
        return self._replaced(collection, {**one, "metadata": one["metadata"] | more})

    def _gone(self, collection: str, one: Object) -> None:
        metadata = one["metadata"]
        del self.objects[collection][metadata.get("namespace", ""), metadata["name"]]
        self._version += 1
        last = {**one, "metadata": metadata | {"resourceVersion": str(self._version)}}
        self._events.append((self._version, collection, "DELETED", last, one))
        self._changed.notify_all()
        for other in list(self.objects["pods"].values()):
            if any(of["uid"] == metadata["uid"] for of in other["metadata"].get("ownerReferences", ())):
                self._deleted("pods", other, {}, {})
        if collection == "pods":
            self._bind_all()

    def _changed_to(self, collection: str, kind: str, one: Object, before: Object | None) -> None:
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        self.objects[collection][one["metadata"].get("namespace", ""), one["metadata"]["name"]] = one
        self._events.append((self._version, collection, kind, one, before))
        self._changed.notify_all()

    # --- in place of a scheduler --------------------------------------------------------------------------------------

    def _bound(self, namespace: str, name: str, binding: Object) -> Object:
        one, of = self._found("pods", namespace, name), binding.get("metadata", {})
        if of.get("uid") and of["uid"] != one["metadata"]["uid"]:
            raise Refusal(409, "Conflict", "another uid")
        if one["spec"].get("nodeName"):
            raise Refusal(409, "Conflict", f"pod {name} is already assigned to node")
        if one["metadata"].get("deletionTimestamp"):
            raise Refusal(409, "Conflict", f"pod {name} is being deleted")
        notes = {"metadata": {"annotations": of.get("annotations", {})}}
        self._replaced("pods", _merged(one, {"spec": {"nodeName": binding["target"]["name"]}} | notes))
        return {"kind": "Status", "status": "Success"}

    def _bind_all(self) -> None:
        if not self.binds:
            return
        for namespace, name in list(self.objects["pods"]):
            one = self.objects["pods"].get((namespace, name))  # what is bound before it changes it
            if one is None or one["spec"].get("nodeName") or one["metadata"].get("deletionTimestamp"):
                continue
            if one["spec"].get("schedulerName", DEFAULT) != DEFAULT:
                continue
            pod = msgspec.convert(one, PodObject)
            for node in [msgspec.convert(of, NodeObject) for of in self.objects["nodes"].values()]:
                if self._has_room(node, pod):
                    self._bound(namespace, name, {"target": {"name": node.metadata.name}})
                    break
            else:
                why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
                if one["status"].get("conditions") != [why]:
                    self._changed_to("pods", "MODIFIED", _merged(one, {"status": {"conditions": [why]}}), one)

    def _has_room(self, node: NodeObject, pod: PodObject) -> bool:
        there = [msgspec.convert(of, PodObject) for of in self.objects["pods"].values()]
        held = [of for of in there if of.spec.node_name == node.metadata.name and not of.ended]
        free = left_of(node, held)
        return pod.may_run_on(node) and all(amount <= free.get(of, 0) for of, amount in requested(pod).items())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: KubernetesApi
    disable_nagle_algorithm = True

    def log_message(self, *arguments: Any) -> None:
        pass

    def _answer(self) -> None:
        split = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(split.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = [unquote(part) for part in split.path.strip("/").split("/")]
        self.api.calls.append((self.command, split.path))
        try:
            self.api.fault(self.command, self.path)
            if query.get("watch") == "1":
                self._watch(parts, query)
                return
            answer, status = self.api.call(self.command, parts, query, body), 200
            self.api.after(self.command, self.path)
        except Dropped:
            self.close_connection = True
            return
        except Refusal as refusal:
            status = refusal.status
            answer = {"kind": "Status", "code": status, "reason": refusal.reason, "message": refusal.message}
            self._say(status, json.dumps(answer).encode(), refusal.after)
            return
        self._say(status, answer["raw"].encode() if parts[-1] == "log" else json.dumps(answer).encode())

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 — as the base class calls them

    def _say(self, status: int, body: bytes, after: float = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if after:
            self.send_header("Retry-After", f"{after:g}")
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, parts: list[str], query: dict[str, str]) -> None:
        collection, namespace, _, _ = _place(parts)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def send(event: Object) -> None:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()

        with contextlib.suppress(OSError):
            self.api.watch(collection, namespace, query, send)
            self.wfile.write(b"0\r\n\r\n")


def _place(parts: list[str]) -> tuple[str, str, str, str]:
    """Collection, namespace, name and subresource of a path."""
    rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else parts
    namespace = ""
    if rest and rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return (*rest, "", "", "")[0], namespace, (*rest, "", "", "")[1], (*rest, "", "", "")[2]


def _selected(one: Object, namespace: str, query: dict[str, str]) -> bool:
    metadata = one["metadata"]
    if namespace and metadata.get("namespace") != namespace:
        return False
    for part in query.get("labelSelector", "").split(","):
        key, _, value = part.partition("=")
        if key and (metadata.get("labels") or {}).get(key) != value:
            return False
    fields = {
        "metadata.name": metadata["name"],
        "spec.nodeName": one.get("spec", {}).get("nodeName", ""),
        "spec.schedulerName": one.get("spec", {}).get("schedulerName", DEFAULT),
        "status.phase": one.get("status", {}).get("phase", ""),
    }
    for part in query.get("fieldSelector", "").split(","):
        if "!=" in part:
            name, _, value = part.partition("!=")
            if fields[name] == value:
                return False
        elif part:
            name, _, value = part.partition("=")
            if fields[name] != value:
                return False
    return True


def _is_restricted(spec: Object) -> bool:
    """Whether a Pod complies with the profile `restricted` of Pod Security."""
    of = spec.get("securityContext") or {}
    plain = of.get("runAsNonRoot") and of.get("seccompProfile", {}).get("type") == "RuntimeDefault"
    contexts = [one.get("securityContext") or {} for one in spec["containers"]]
    return bool(plain) and all(
        one.get("allowPrivilegeEscalation") is False and one.get("capabilities", {}).get("drop") == ["ALL"]
        for one in contexts
    )


def _of_claim(one: Object, body: Object, below: str) -> Object:
    """The part of a patch that the server takes: a claim and its status are written apart, and an allocation stays."""
    if below != "status":
        return {name: value for name, value in body.items() if name != "status"}
    have, asked = one.get("status", {}).get("allocation"), body.get("status", {}).get("allocation")
    if have and asked and have != asked:
        raise Refusal(422, "Invalid", "status.allocation: field is immutable")
    if asked and "resource.kubernetes.io/delete-protection" not in one["metadata"].get("finalizers", ()):
        raise Refusal(422, "Invalid", "a claim with devices needs its finalizer")
    return {"status": body.get("status", {})}


def _told(kind: str, one: Object, before: Object | None, namespace: str, query: dict[str, str]) -> Object | None:
    """The event as a watch with these selectors is told it."""
    now = kind != "DELETED" and _selected(one, namespace, query)
    then = before is not None and _selected(before, namespace, query)
    if now:
        return {"type": "MODIFIED" if then else "ADDED", "object": one}
    return {"type": "DELETED", "object": one} if then else None


def _merged(one: Object, patch: Object) -> Object:
    found = dict(one)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, dict):
            found[name] = _merged(found.get(name) or {}, value)
        else:
            found[name] = value
    return found


def _copy(one: Object) -> Object:
    found: Object = json.loads(json.dumps(one))
    return found


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def kubernetes_api() -> Iterator[KubernetesApi]:
    api = KubernetesApi()
    api.start()
    try:
        yield api
    finally:
        api.close()


def node(cpu: str = "4", memory: str = "8Gi", ready: bool = True, **more: Any) -> Object:
    """Fields of a Node."""
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", **more.pop("devices", {})}
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    return {"spec": {}, "status": {"allocatable": allocatable, "conditions": conditions}, **more}


def pod(cpu: str = "1", memory: str = "1Gi", **spec: Any) -> Object:
    """Fields of a Pod of somebody else."""
    held = {"cpu": cpu, "memory": memory, **spec.pop("devices", {})}
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": held}}], **spec}}
