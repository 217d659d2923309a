"""Check whether Poise can run on a Kubernetes cluster, for `poise doctor --on kubernetes`."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

from poise.drivers.kubernetes.api import Api, Away, Refused
from poise.drivers.kubernetes.credentials import find_access
from poise.drivers.kubernetes.watching import Watched
from poise.errors import PoiseError
from poise.model.document import some
from poise.model.messages import Attempt, Launch
from poise.model.reports.nodes import Check
from poise.model.resources import Shape
from poise.units import format_bytes, format_cpu
from poise_kubernetes import manifests
from poise_kubernetes.claims import GROUP, VERSION
from poise_kubernetes.offers import PILOT_MEMORY, Grant
from poise_kubernetes.records import NodeObject, PodObject, amounts, device_of, is_device, left_of
from poise_kubernetes.security import create_task
from poise_kubernetes.settings import Settings

OLDEST = (1, 19)
"""The oldest Kubernetes version whose API has everything that Poise uses."""

FEW = 3
"""Names of nodes for each reason why they are not used."""

Right = tuple[str, str, tuple[str, ...], bool]

RIGHTS: tuple[Right, ...] = (
    ("", "nodes", ("list", "watch"), False),
    ("", "pods", ("list", "watch"), False),
    ("", "pods", ("create", "patch", "delete"), True),
    ("", "secrets", ("create", "get", "patch", "delete"), True),
)
"""Group, resource and verbs, and whether they are needed only in our namespace."""

TO_PLACE: tuple[Right, ...] = (
    ("", "nodes", ("list", "watch"), False),
    ("", "pods", ("list", "watch", "get", "delete"), False),
    ("", "pods/binding", ("create",), False),
    ("", "events", ("create", "patch"), False),
    ("", "persistentvolumeclaims", ("list", "watch", "get", "patch"), False),
    ("", "persistentvolumes", ("list", "watch"), False),
    ("storage.k8s.io", "storageclasses", ("list", "watch"), False),
    ("batch", "jobs", ("get",), False),
    ("", "pods", ("create",), True),
    ("", "pods/log", ("get",), True),
    ("", "secrets", ("create", "get"), True),
)
"""Those of a scheduler."""

TO_ALLOCATE: tuple[Right, ...] = (
    (GROUP, "resourceslices", ("list", "watch"), False),
    (GROUP, "deviceclasses", ("list", "watch"), False),
    (GROUP, "resourceclaims", ("list", "watch", "get", "patch"), False),
    (GROUP, "resourceclaims/status", ("patch",), False),
)
"""Those of a scheduler where the devices of drivers are claimed."""


def checks(settings: Settings) -> Iterator[Check]:
    """Check the API server and its version, each right, the nodes, the quotas, and the classes that the
    settings name.
    """
    try:
        api = Api(access := find_access(settings.context))
        version = api.get("/version")
    except PoiseError as error:
        yield Check("API server", "fail", f"{error}: {error.record.have}", error.record.hint)
        return
    except (Away, Refused) as error:
        yield Check("API server", "fail", str(error), "`kubectl version` must work here")
        return
    space = settings.namespace or access.namespace
    yield _version(version, f"{access.host}:{access.port}")
    base, needed = "base", RIGHTS
    if settings.scheduler:
        claims = _serves_claims(api)
        yield Check("claims of devices", "ok", f"{VERSION} is {'served' if claims else 'not served'}")
        base, needed = "scheduler", (*TO_PLACE, *TO_ALLOCATE) if claims else TO_PLACE
    missing = False
    for check in _rights(api, space, base, needed):
        missing = missing or check.status == "fail"
        yield check
    if missing:
        return
    try:
        yield from _nodes(api, settings)
        yield from _quotas(api, space)
        yield from _named(api, settings, space)
        yield _trial(api, settings, space)
    except (Away, Refused) as error:
        yield Check("cluster", "fail", str(error), "try again")


def _version(version: dict[str, Any], server: str) -> Check:
    text = str(version.get("gitVersion", "of an unknown version"))
    found = tuple(int("".join(filter(str.isdigit, str(version.get(name, "0")))) or 0) for name in ("major", "minor"))
    if found < OLDEST:
        need = ".".join(map(str, OLDEST))
        return Check("API server", "warn", f"{server} is {text}; Poise was made for {need} and later")
    return Check("API server", "ok", f"{server} is {text}")


def _serves_claims(api: Api) -> bool:
    try:
        api.get(VERSION)
    except (Away, Refused):
        return False
    return True


def _rights(api: Api, space: str, base: str, needed: Iterable[Right]) -> Iterator[Check]:
    for group, resource, verbs, in_space in needed:
        where = f"in {space}" if in_space else "in all namespaces" if resource != "nodes" else "of the cluster"
        denied = []
        for verb in verbs:
            name, _, part = resource.partition("/")
            of = {"group": group, "resource": name, "subresource": part, "verb": verb}
            of |= {"namespace": space} if in_space else {}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": of},
            }
            try:
                answer = api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            except (Away, Refused) as error:
                yield Check(f"rights to {resource}", "fail", str(error), "try again")
                return
            if not answer.get("status", {}).get("allowed"):
                denied.append(verb)
        hint = f"an administrator applies `deploy/kubernetes/{base}`, or gives these rights"
        if denied:
            yield Check(f"rights to {resource}", "fail", f"no {', '.join(denied)} {where}", hint)
        else:
            yield Check(f"rights to {resource}", "ok", f"{', '.join(verbs)} {where}")


def _nodes(api: Api, settings: Settings) -> Iterator[Check]:
    nodes, pods = Watched(api, "/api/v1/nodes", NodeObject), Watched(api, "/api/v1/pods", PodObject)
    nodes.list()
    pods.list()
    on: dict[str, list[PodObject]] = {}
    for pod in pods.items():
        if not pod.ended:
            on.setdefault(pod.spec.node_name, []).append(pod)
    usable, free, devices, unused = 0, {"cpu": 0, "memory": 0}, dict[str, int](), dict[str, list[str]]()
    for node in nodes.items():
        device = device_of(amounts(node.status.allocatable))
        if why := manifests.why_unused(node, device, settings):
            unused.setdefault(why, []).append(node.metadata.name)
            continue
        usable += 1
        left = left_of(node, on.get(node.metadata.name, ()))
        for name in free:
            free[name] += max(0, left.get(name, 0))
        if device:
            devices[device] = devices.get(device, 0) + max(0, left[device])
    text = f"{usable} of {len(nodes.items())} can be used: {format_cpu(free['cpu'])} CPU"
    text += f" and {format_bytes(free['memory'])} are free"
    text += "".join(f", {count} {device}" for device, count in sorted(devices.items()))
    text += "".join(f"; {some(sorted(names), FEW)} {why}" for why, names in sorted(unused.items()))
    hint = "" if usable else "`kubectl get nodes`; see `select=` and `tolerate=`"
    yield Check("nodes", "ok" if usable else "fail", text, hint)


def _quotas(api: Api, space: str) -> Iterator[Check]:
    """Check the quotas of the namespace, if they can be listed."""
    try:
        found = api.get(f"/api/v1/namespaces/{quote(space)}/resourcequotas")
    except Refused:
        yield Check("quotas", "warn", f"those of {space} cannot be listed; a pod beyond one is refused with its name")
        return
    for quota in found.get("items") or ():
        hard, used = (amounts(quota.get("status", {}).get(of)) for of in ("hard", "used"))
        full = sorted(name for name, most in hard.items() if used.get(name, 0) >= most and _limits_pods(name))
        name = f"quota {quota['metadata']['name']}"
        if full:
            yield Check(name, "warn", f"{', '.join(full)} are used up in {space}", "pods that request them are refused")
        else:
            yield Check(name, "ok", f"limits {', '.join(sorted(hard))} in {space}")


def _limits_pods(name: str) -> bool:
    """Whether an amount of a quota can keep Pods from being created."""
    plain = name.removeprefix("requests.").removeprefix("limits.").removeprefix("count/")
    return plain in ("pods", "cpu", "memory") or (plain != name and is_device(plain))


def _trial(api: Api, settings: Settings, space: str) -> Check:
    """Have the API server and the webhooks of the cluster check a small Pod, without creating it: that of a pilot, or
    of a task with an image.
    """
    name = f"a pod in {space}"
    owner = {"name": manifests.home_name("doctor"), "uid": "doctor"}
    path = f"/api/v1/namespaces/{quote(space)}/pods"
    shape = Shape(cpu=100, memory=2 * PILOT_MEMORY)
    restricted = False
    try:
        if settings.scheduler:
            launch = Launch(attempt=Attempt("doctor", 1), argv=("true",), shape=shape, slots=1, image=settings.image)
            task = partial(manifests.task_pod, "doctor", owner, launch, "", "", {}, settings)
            _, restricted = create_task(api, path, task, False, dryRun="All")
        else:
            body = manifests.pod("doctor", owner, Grant("", shape.cpu, shape.memory), 0, settings)
            api.create(path, body, dryRun="All")
    except Refused as refused:
        if refused.status == 400 and "dry run" in refused.message:
            return Check(name, "warn", f"not checked: {refused}")
        hint = f"`kubectl create namespace {space}`" if refused.status == 404 else "an administrator allows such Pods"
        return Check(name, "fail", f"would be refused: {refused}", hint)
    more = ", as `restricted`: the image of a task must have a user that is not root" if restricted else ""
    return Check(name, "ok", f"would be accepted{more}")


def _named(api: Api, settings: Settings, space: str) -> Iterator[Check]:
    """Check the objects that the settings name."""
    for setting, path in (
        ("priority", "/apis/scheduling.k8s.io/v1/priorityclasses/"),
        ("runtime", "/apis/node.k8s.io/v1/runtimeclasses/"),
        ("pull", f"/api/v1/namespaces/{quote(space)}/secrets/"),
        ("claim", f"/api/v1/namespaces/{quote(space)}/persistentvolumeclaims/"),
    ):
        name = getattr(settings, setting)
        if not name:
            continue
        try:
            api.get(path + quote(name))
        except Refused as refused:
            if refused.status != 404:
                yield Check(f"{setting} {name}", "warn", f"cannot be seen: {refused}")
            else:
                yield Check(f"{setting} {name}", "fail", "is not there", f"kubernetes:{setting}=NAME")
        else:
            yield Check(f"{setting} {name}", "ok", "is there")
