"""Objects that Poise creates: one Secret for each home, which owns its Pods, and the Pods.

The Secret holds the address of the control plane and the token for nodes. Deleting it deletes the Pods, so nothing is
left if the control plane never comes back. A Pod's name is derived from its home, its node and a number, so a repeated
creation finds that it already exists.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from poise.drivers.devices import Part
from poise.model.messages import Launch
from poise.ports import Contact
from poise.units import SECOND
from poise_kubernetes import security
from poise_kubernetes.offers import PILOT_MEMORY, Grant
from poise_kubernetes.records import NodeObject, Toleration, taint_against
from poise_kubernetes.settings import Settings

BASE = "/poise"
"""The folder of the pilot in its container."""

ORDERS = "poise-scheduler/orders"
"""The annotation of a Pod that holds its orders."""

GRANT = "poise-scheduler/grant"
"""The annotation of a Pod that records what it holds."""

MANAGED, HOME = "app.kubernetes.io/managed-by", "app.kubernetes.io/instance"

SYSTEM, LINUX = "kubernetes.io/os", "linux"
"""The label that names the operating system of a node, and the only system that runs Pods of Poise."""

PILOT, TASK = "pilot", "task"
"""Names of the containers of pilots and of tasks."""

USER = 10001
"""The user id of the image; it is not root."""

BEAT_SECONDS = 20
"""A pilot whose heartbeat file is older than this is not ready."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Orders to a pilot: serve as this `node`, with these `labels`. `restarts` and `released` count the orders to start
    another agent, and to end unless commands run. `contact` is a digest of the current contact. `grace` is the time in
    seconds that the Pod has for its end; the cluster may give it less than the settings request.
    """

    node: str
    contact: str
    labels: dict[str, str] = {}
    restarts: int = 0
    released: int = 0
    grace: int = 30


def digest(contact: Contact) -> str:
    return hashlib.sha256(msgspec.json.encode(contact)).hexdigest()[:16]


def home_name(home: str) -> str:
    """The name of the Secret of a home."""
    return f"poise-{home}"


def labels(home: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "poise", MANAGED: "poise", HOME: home}


def selector(home: str) -> str:
    return f"{MANAGED}=poise,{HOME}={home}"


def secret(home: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": home_name(home), "labels": labels(home)},
        "type": "poise-scheduler/contact",
    }


def pod_name(home: str, node: str, number: int) -> str:
    return f"poise-{home}-{hashlib.sha256(node.encode()).hexdigest()[:8]}-{number}"


def pod(home: str, owner: Mapping[str, str], grant: Grant, number: int, settings: Settings) -> dict[str, Any]:
    """Return the manifest of a Pod of this size, bound to a node if the grant names one. `owner` is the Secret: its
    name and uid.
    """
    held = {of: f"{amount}m" if of == "cpu" else str(amount) for of, amount in grant.amounts().items()}
    part = Part(
        cpu=grant.cpu,
        memory=grant.memory - PILOT_MEMORY,
        devices=tuple(map(str, range(grant.number))),  # a container sees only its own devices
    )
    annotation = f"metadata.annotations['{ORDERS}']"
    volumes: list[dict[str, Any]] = [
        {"name": "node", "emptyDir": {}},
        {"name": "contact", "secret": {"secretName": owner["name"], "defaultMode": 0o440, "optional": True}},
        {"name": "orders", "downwardAPI": {"items": [{"path": "orders", "fieldRef": {"fieldPath": annotation}}]}},
    ]
    mounts = [
        {"name": "node", "mountPath": f"{BASE}/node"},
        {"name": "contact", "mountPath": f"{BASE}/contact", "readOnly": True},
        {"name": "orders", "mountPath": f"{BASE}/orders", "readOnly": True},
    ]
    if settings.claim:
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": settings.claim}})
        mounts.append({"name": "checkpoints", "mountPath": f"{BASE}/checkpoints"})
    fresh = f"[ $(( $(date +%s) - $(stat -c %Y {BASE}/node/alive) )) -lt {BEAT_SECONDS} ]"
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": settings.grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # its first process reaps orphans
        "securityContext": {**security.PROFILE, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER},
        "containers": [
            {
                "name": PILOT,
                "image": settings.image,
                "command": ["python", "-m", "poise_kubernetes.pilot", BASE],
                "resources": {"requests": held, "limits": held},
                "securityContext": security.CONTAINER,
                "readinessProbe": {"exec": {"command": ["/bin/sh", "-c", fresh]}, "periodSeconds": 5},
                "volumeMounts": mounts,
                "env": [{"name": "POISE_PART", "value": msgspec.json.encode(part).decode()}],
            }
        ],
        "volumes": volumes,
    }
    if grant.node:
        only = {"requiredDuringSchedulingIgnoredDuringExecution": _only(grant.node)}
        spec["affinity"] = {"nodeAffinity": only}
    if not grant.node and settings.select:
        spec["nodeSelector"] = dict(settings.select)
    tolerated = tolerations(settings, grant.device if grant.number else "")
    spec["tolerations"] = [msgspec.to_builtins(one) for one in tolerated]
    spec |= _named(settings)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(home, grant.node, number),
            "labels": dict(settings.labels) | labels(home),
            "annotations": dict(settings.annotations) | {GRANT: msgspec.json.encode(grant).decode()},
            "ownerReferences": [_owned_by(owner)],
        },
        "spec": spec,
    }


def tolerations(settings: Settings, device: str) -> tuple[Toleration, ...]:
    """Return the tolerations of a Pod: those of the settings, and one for the taint that is named like its device.
    Without a device, only the former.
    """
    chosen = (
        Toleration(key=key, operator="Equal", value=value) if value else Toleration(key=key, operator="Exists")
        for key, value in settings.tolerate
    )
    return (*chosen, *([Toleration(key=device, operator="Exists")] if device else ()))


def why_unused(node: NodeObject, device: str, settings: Settings) -> str:
    """Return why no Pod of this `device` may be created on a node, whatever is free; empty if it may."""
    labels = node.metadata.labels or {}
    missing = [f"{key}={value}" for key, value in settings.select if labels.get(key) != value]
    if not node.ready:
        return "not ready"
    if (system := labels.get(SYSTEM, LINUX)) != LINUX:
        return f"with the operating system {system}"
    if missing:
        return f"without the label `{missing[0]}`"
    if node.spec.unschedulable:
        return "cordoned"
    taint = taint_against(node, tolerations(settings, device))
    return f"with the taint `{taint}`" if taint is not None else ""


def _owned_by(secret: Mapping[str, str]) -> dict[str, Any]:
    """Return the reference to the Secret that owns a Pod. `kubectl drain` refuses Pods without a controller, and a
    ReplicaSet may adopt them.
    """
    return {"apiVersion": "v1", "kind": "Secret", "name": secret["name"], "uid": secret["uid"], "controller": True}


def _named(settings: Settings) -> dict[str, Any]:
    """Return the fields of a Pod that name other objects, as the settings choose them."""
    found = {
        "priorityClassName": settings.priority,
        "runtimeClassName": settings.runtime,
        "serviceAccountName": settings.account,
    }
    pulls = {"imagePullSecrets": [{"name": settings.pull}]} if settings.pull else {}
    return {field: name for field, name in found.items() if name} | pulls


def _only(node: str) -> dict[str, Any]:
    """Return the affinity to one node, by name as in a DaemonSet; the cluster's scheduler checks the rest."""
    by_name = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [by_name]}]}


def task_name(home: str, launch: Launch) -> str:
    """The name of the Pod of an attempt: a repeated creation finds that it exists."""
    task = re.sub("[^a-z0-9]+", "-", launch.attempt.task.lower()).strip("-")
    name = f"poise-{home[:6]}-{task}"
    short = name if len(name) < 50 else f"{name[:40]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{short}-{launch.attempt.epoch}"


def task_pod(
    home: str,
    owner: Mapping[str, str],
    launch: Launch,
    node: str,
    device: str,
    notes: Mapping[str, str],
    settings: Settings,
    restricted: bool = False,
) -> dict[str, Any]:
    """Return the manifest of the Pod of an attempt, already placed on its node. A `restricted` one complies with that
    profile of Pod Security.
    """
    shape, attempt = launch.shape, launch.attempt
    held = {"cpu": f"{shape.cpu}m"} | ({"memory": str(shape.memory)} if shape.memory else {})
    held |= {device: str(len(launch.devices))} if launch.devices else {}
    variables = {
        **launch.env,
        "POISE_JOB": attempt.task.partition(".")[0],
        "POISE_TASK": attempt.task,
        "POISE_EPOCH": str(attempt.epoch),
    }
    if launch.gang:
        variables |= {"POISE_RANK": str(launch.rank), "POISE_WORLD_SIZE": str(launch.world)}
    if launch.parts:
        variables |= {"POISE_PART": str(launch.part), "POISE_PARTS": str(launch.parts)}
    limits = {name: amount for name, amount in held.items() if name != "cpu"}
    spec: dict[str, Any] = {
        "nodeName": node,
        "schedulerName": settings.scheduler,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(1, launch.grace // SECOND),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": TASK,
                "image": launch.image,
                "command": list(launch.argv),
                "resources": {"requests": held, "limits": limits},
                "env": [{"name": name, "value": value} for name, value in variables.items()],
            }
        ],
    }
    if restricted:
        spec["securityContext"] = security.PROFILE
        spec["containers"][0]["securityContext"] = security.CONTAINER
    if device:
        spec["tolerations"] = [{"key": device, "operator": "Exists"}]
    if launch.time_limit:
        spec["activeDeadlineSeconds"] = max(1, launch.time_limit // SECOND)
    spec |= _named(settings)
    metadata = {
        "name": task_name(home, launch),
        "labels": dict(settings.labels) | labels(home),
        "annotations": dict(settings.annotations) | dict(notes),
        "ownerReferences": [_owned_by(owner)],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
