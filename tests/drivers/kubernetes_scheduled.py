"""A cluster whose Pods Poise places, in virtual time: the real control plane, the real placer, a small API server in
memory, kubelets, controllers that replace Pods, and another scheduler. A seed decides what breaks.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from drivers.kubernetes_api import DEFAULT, KubernetesApi, Object, Refusal, node
from poise.drivers.kubernetes.api import Refused
from poise.engine.control import SimulatedHome
from poise.engine.disk import SimulatedDisk
from poise.engine.network import End, Network
from poise.engine.timeline import WALL, Process, Timeline
from poise.errors import PoiseError
from poise.kernel.controller import Settings as ControlSettings
from poise.kernel.ledger import job_status
from poise.kernel.messages import Cancel, Message, Reply, Submit
from poise.model.messages import Attempt, FromAgent, Launch
from poise.units import MILLISECOND, SECOND
from poise_kubernetes import manifests
from poise_kubernetes.claims import ClaimObject, ClassObject, DeviceChanges, Granted, SliceObject
from poise_kubernetes.grouping import least_in
from poise_kubernetes.placing import Asked, Placer
from poise_kubernetes.records import NodeObject, PodObject
from poise_kubernetes.scheduling import outcome_of, refusal_of, reserved
from poise_kubernetes.settings import Settings
from poise_kubernetes.volumes import StorageClass, Volume, VolumeChanges, VolumeClaim

OURS = "poise"
OWNER = {"name": "poise-home", "uid": "owner"}
LOOK = 200 * MILLISECOND


class Wire:
    """One node of the placer and its connection to the control plane."""

    def __init__(self, world: "Scheduled", name: str) -> None:
        self._world, self._name = world, name
        self._channel: End | None = None
        self._process, self._placer = world.process, world.placer
        self.over = False
        self.dial()

    def dial(self) -> None:
        world = self._world
        control = world.home.control
        world.network.dial(self._name, self._process, control.process, partial(self._opened, control), self._later)

    def say(self, message: FromAgent) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def hang(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._closed()

    def _later(self) -> None:
        if not self.over:
            self._process.call_later(0.2, self.dial)

    def _opened(self, control: Any, near: End, far: End) -> None:
        if self.over or far.is_gone() or not control.accept(far):
            self._later()
            return
        self._channel = near
        near.on_message = lambda message: self._placer.hear(self._name, message, self._world.now)
        near.on_close = self._closed
        self._placer.connected(self._name, self._world.now)
        self._world.tick_soon()

    def _closed(self) -> None:
        self._channel = None
        self._placer.disconnected(self._name, self._world.now)
        self._later()


def _changes(before: Mapping[tuple[str, str], Any], now: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    changed = {key: one for key, one in now.items() if before.get(key) is not one}
    return changed | dict.fromkeys(before.keys() - now.keys())


class Scheduled:
    """`fault` is asked before each write to the API server: it returns `refused`, `lost` (done, without an answer),
    `away` (not done), or nothing.
    """

    def __init__(self, seed: int = 0, nodes: Mapping[str, Object] | None = None) -> None:
        self.random = Random(f"scheduled {seed}")  # noqa: S311
        self.timeline = Timeline()
        self.network = Network(self.timeline, self.random)
        self.disk = SimulatedDisk()
        self.home = SimulatedHome(
            self.timeline, self.disk, ControlSettings(seed=seed), self.random, told=self.tell, took=lambda _: None
        )
        self.api = KubernetesApi()
        self.api.binds = False
        self.fault: Callable[[str], str] = lambda what: ""
        self.stale = 0.0  # how often a look sees an older copy
        self.told: list[str] = []
        self.groups: dict[str, Object] = {}  # what tells the size of a gang, by its path
        self.bindings: dict[str, int] = {}  # successful ones, by uid of the Pod
        self.writes = 0
        self.created: list[str] = []
        self.deleted: dict[str, str] = {}  # why, by the name of the Pod
        self._records: dict[tuple[str, str], Any] = {}
        self._copy: list[dict[tuple[str, str], Any]] = [{} for _ in range(9)]
        self._ticking = False
        self._timer: Any = None
        for name, fields in (nodes or {"a": node(), "b": node()}).items():
            self.api.put("nodes", name, **fields)
        self.timeline.call_at(0, self.home.start)
        self.start_placer()

    def close(self) -> None:
        self.api._server.server_close()

    def tell(self, what: str) -> None:
        self.told.append(f"{self.timeline.now / SECOND:.2f} {what}")

    @property
    def now(self) -> int:
        return self.timeline.now

    # --- the placer ---------------------------------------------------------------------------------------------------

    def start_placer(self) -> None:
        """A new process of the scheduler; one before it was killed."""
        self.process = Process(self.timeline, "placer")
        self.process.start()
        self.wires: dict[str, Wire] = {}
        self.placer = Placer("home", self)
        self._fresh, self._copy = True, [{} for _ in range(9)]
        self.process.call_later(0.01, self._look)

    def kill_placer(self) -> None:
        self.process.kill()
        for wire in self.wires.values():
            wire.over = True
            if wire._channel is not None:
                wire._channel.close()
        self.start_placer()

    def _look(self) -> None:
        changes: list[dict[tuple[str, str], Any]] = [{} for _ in self._copy]
        if self._fresh or self.random.random() >= self.stale:
            before, self._copy, self._fresh = self._copy, self._copied(), False
            changes = [_changes(old, new) for old, new in zip(before, self._copy, strict=True)]
        nodes, others, own, *more = changes
        devices, volumes = DeviceChanges(*more[:3]), VolumeChanges(*more[3:])
        self.placer.look(nodes, others, own, self.now, devices, volumes)
        self.tick_soon()
        self.process.call_later(LOOK / SECOND, self._look)

    def _copied(self) -> list[dict[tuple[str, str], Any]]:
        nodes = [self._record(of, NodeObject) for of in self.api.all("nodes")]
        pods = [self._record(of, PodObject) for of in self.api.all("pods")]
        others = [pod for pod in pods if not pod.ended and pod.spec.scheduler_name != OURS]
        own = [pod for pod in pods if pod.spec.scheduler_name == OURS]
        more = [
            [self._record(of, kind) for of in self.api.all(name)]
            for name, kind in (
                ("resourceslices", SliceObject),
                ("deviceclasses", ClassObject),
                ("resourceclaims", ClaimObject),
                ("persistentvolumeclaims", VolumeClaim),
                ("persistentvolumes", Volume),
                ("storageclasses", StorageClass),
            )
        ]
        every = (nodes, others, own, *more)
        return [{(of.metadata.namespace, of.metadata.name): of for of in found} for found in every]

    def _record(self, one: Object, kind: Any) -> Any:
        key = one["metadata"]["uid"], one["metadata"]["resourceVersion"]
        if key not in self._records:
            self._records[key] = msgspec.convert(one, kind)
        return self._records[key]

    def tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self.timeline.call_at(self.now, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        if not self.process.alive:
            return
        self.placer.tick(self.now)
        if self.placer.is_stirred:
            self.placer.look({}, {}, {}, self.now)
        if self._timer is not None:
            self._timer.cancel()
        due = self.placer.wakeup()
        if due is not None:
            self._timer = self.timeline.call_at(max(due, self.now + MILLISECOND), self._tick)

    # --- its ways out -------------------------------------------------------------------------------------------------

    def dial(self, node: str) -> None:
        self.wires[node] = Wire(self, node)

    def say(self, node: str, message: FromAgent) -> None:
        self.wires[node].say(message)
        self.tick_soon()

    def hang(self, node: str) -> None:
        self.wires[node].hang()

    def leave(self, node: str) -> None:
        wire = self.wires.pop(node)
        wire.over = True
        wire.hang()

    def submit(self, asked: Sequence[Asked]) -> None:
        for one in asked:
            self._ask_control(one)

    def _ask_control(self, asked: Asked) -> None:
        placer, process = self.placer, self.process
        host = self.home.host
        again = partial(process.call_later, 1.0, self._ask_control, asked)
        if host is None:
            again()
            return
        try:
            compiled = host.controller.prepare(asked.spec, WALL, host.clock.now())
        except PoiseError as error:
            placer.submitted(asked.key, "", self.now, why=refusal_of(error.record))
            return
        make: Callable[[int], Message] = lambda request: Submit(request, compiled, asked.key)  # noqa: E731
        done = False

        def answer(reply: Reply) -> None:
            nonlocal done
            if done or not process.alive or placer is not self.placer:
                return
            done = True
            if reply.error is not None:
                placer.submitted(asked.key, "", self.now, why=refusal_of(reply.error.record))
                return
            known = self.home.host.ledger.jobs.get(reply.value) if self.home.host else None
            over = "" if known is None or not known.ended else job_status(known)
            placer.submitted(asked.key, reply.value, self.now, over)

        def give_up() -> None:
            nonlocal done
            if not done:
                done = True
                self._ask_control(asked)

        if self.home.control.ask(make, answer):
            process.call_later(5.0, give_up)
        else:
            again()

    def cancel(self, job: str) -> None:
        make: Callable[[int], Message] = lambda request: Cancel(request, job)  # noqa: E731
        if not self.home.control.ask(make, lambda reply: None):
            self.process.call_later(1.0, self.cancel, job)

    def check(self, jobs: Sequence[str]) -> None:
        if self.home.host is not None:
            known = {job: self.home.host.ledger.jobs.get(job) for job in jobs}
            found = {job: "" if one is None else job_status(one) for job, one in known.items() if not one or one.ended}
            self.process.call_later(0.01, self.placer.ended, found, self.now)

    def bind(
        self,
        attempt: Attempt,
        pod: PodObject,
        node: str,
        notes: Mapping[str, str],
        granted: Sequence[Granted],
        unbound: Sequence[VolumeClaim],
    ) -> None:
        pause = self.random.uniform(0.001, 0.05)
        self.process.call_later(pause, self._bind, attempt, pod, node, dict(notes), granted, unbound)

    def _bind(
        self,
        attempt: Attempt,
        pod: PodObject,
        node: str,
        notes: dict[str, str],
        granted: Sequence[Granted],
        unbound: Sequence[VolumeClaim],
    ) -> None:
        self.writes += 1
        answer = partial(self.placer.bound, attempt)
        fault = self.fault("bind")
        if fault in ("refused", "away"):
            answer("refused" if fault == "refused" else "again", self.now, fault)
            return
        outcome, why = reserved(self, pod, node, granted, unbound)
        if outcome != "bound":
            answer(outcome, self.now, why)
            return
        parts = ["api", "v1", "namespaces", pod.metadata.namespace, "pods", pod.metadata.name, "binding"]
        body = {
            "metadata": {"name": pod.metadata.name, "uid": pod.metadata.uid, "annotations": notes},
            "target": {"kind": "Node", "name": node},
        }
        try:
            self.api.call("POST", parts, {}, body)
        except Refusal as refused:
            answer(*self.settled(pod, notes, node, refused.status, str(refused)))
            return
        self.bindings[pod.metadata.uid] = self.bindings.get(pod.metadata.uid, 0) + 1
        if fault == "lost":
            answer("again", self.now)
        else:
            answer("bound", self.now)

    def get(self, path: str) -> Any:
        return self._called("GET", path, {})

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._called("PATCH", path, dict(body))

    def _called(self, method: str, path: str, body: Object) -> Any:
        self.writes += method != "GET"
        try:
            return self.api.call(method, path.strip("/").split("/"), {}, body)
        except Refusal as refused:
            raise Refused(refused.status, refused.reason, refused.message) from None

    def settled(self, pod: PodObject, notes: Mapping[str, str], node: str, status: int, why: str) -> tuple[Any, ...]:
        found = self.api.objects["pods"].get((pod.metadata.namespace, pod.metadata.name))
        if found is not None and found["metadata"]["uid"] == pod.metadata.uid:
            return outcome_of(msgspec.convert(found, PodObject), notes, node), self.now, why
        return "gone", self.now, why

    def create(self, attempt: Attempt, launch: Launch, node: str, device: str, notes: Mapping[str, str]) -> None:
        pause = self.random.uniform(0.001, 0.05)
        self.process.call_later(pause, self._create, attempt, launch, node, device, dict(notes))

    def _create(self, attempt: Attempt, launch: Launch, node: str, device: str, notes: dict[str, str]) -> None:
        answer, fault = partial(self.placer.bound, attempt), self.fault("create")
        if fault in ("refused", "away"):
            answer("refused" if fault == "refused" else "again", self.now, fault)
            return
        body = manifests.task_pod("home", OWNER, launch, node, device, notes, Settings(scheduler=OURS))
        parts = ["api", "v1", "namespaces", "ml", "pods"]
        self.writes += 1
        try:
            made = self.api.call("POST", parts, {}, body)
            self.created.append(body["metadata"]["name"])
        except Refusal:
            made = self.api.get("pods", body["metadata"]["name"], "ml")
        if fault == "lost":
            answer("again", self.now)
        else:
            answer("bound", self.now, pod=msgspec.convert(made, PodObject))

    def fetch(self, attempt: Attempt, pod: PodObject) -> None:
        self.process.call_later(0.01, self.placer.fetched, attempt, self.now)

    def delete(self, pod: PodObject, why: str = "") -> None:
        self.deleted[pod.metadata.name] = why
        self.process.call_later(0.01, self._delete, pod)

    def _delete(self, pod: PodObject) -> None:
        if self.fault("delete") in ("refused", "away"):
            return  # the placer asks again
        parts = ["api", "v1", "namespaces", pod.metadata.namespace, "pods", pod.metadata.name]
        with contextlib.suppress(Refusal):
            self.api.call("DELETE", parts, {}, {"preconditions": {"uid": pod.metadata.uid}})

    def ask(self, path: str) -> None:
        placer = self.placer
        found = self.groups.get(path)
        self.process.call_later(0.01, placer.answered, path, least_in(found) if found is not None else 0)

    # --- what a test does ---------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        until = self.now + round(seconds * SECOND)
        while self.timeline.step(until):
            pass

    def pod(self, name: str, cpu: str = "1", space: str = "ml", **fields: Any) -> Object:
        """Create a Pod that Poise places."""
        metadata: Object = {"labels": fields.pop("labels", {}), "annotations": fields.pop("annotations", {})}
        metadata["ownerReferences"] = fields.pop("owners", [])
        held = {"cpu": cpu, "memory": "1Gi", **fields.pop("devices", {})}
        ports = [{"hostPort": port} for port in fields.pop("ports", ())]
        container = {"name": "main", "resources": {"requests": held}, "ports": ports}
        spec = {"schedulerName": OURS, "containers": [container], **fields}
        parts = ["api", "v1", "namespaces", space, "pods"]
        return self.api.call("POST", parts, {}, {"metadata": {"name": name, **metadata}, "spec": spec})

    def claim(self, name: str, mode: str = "WaitForFirstConsumer", **fields: Any) -> dict[str, Any]:
        """Create a PersistentVolumeClaim and its class; return the field of a Pod that uses it."""
        self.api.put("storageclasses", mode, **{"provisioner": "disks", "volumeBindingMode": mode, **fields})
        self.api.put("persistentvolumeclaims", name, "ml", spec={"storageClassName": mode}, status={"phase": "Pending"})
        return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}

    def provide(self, name: str, **labels: str) -> None:
        """Bind a claim to a new volume that nodes with these labels can mount."""
        terms = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
        affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": terms}]}}
        spec = {"claimRef": {"namespace": "ml", "name": name}} | ({"nodeAffinity": affinity} if labels else {})
        self.api.put("persistentvolumes", f"of-{name}", spec=spec)
        bound = {"spec": {"volumeName": f"of-{name}"}, "status": {"phase": "Bound"}}
        self.api.patch("persistentvolumeclaims", name, bound, "ml")

    def job(self, **fields: Any) -> None:
        """Submit a job to Poise."""
        host = self.home.host
        assert host is not None
        compiled = host.controller.prepare({"run": ["work"], "sync": False, **fields}, WALL, host.clock.now())
        make: Callable[[int], Message] = lambda request: Submit(request, compiled, fields["name"])  # noqa: E731
        self.home.control.ask(make, lambda reply: None)

    def gang(self, name: str, pods: int, cpu: str = "1", **fields: Any) -> None:
        labels = {"pod-group.scheduling.sigs.k8s.io/name": name}
        labels["pod-group.scheduling.sigs.k8s.io/min-available"] = str(fields.pop("least", pods))
        for number in range(pods):
            self.pod(f"{name}-{number}", cpu, labels=labels, **dict(fields))

    def names(self) -> list[str]:
        return [of["metadata"]["name"] for of in self.api.all("pods")]

    def on(self) -> dict[str, str]:
        """The node of each Pod that is bound."""
        bound = (of for of in self.api.all("pods") if of["spec"].get("nodeName"))
        return {of["metadata"]["name"]: of["spec"]["nodeName"] for of in bound}

    def end(self, name: str, phase: str = "Succeeded", space: str = "ml") -> None:
        self.api.patch("pods", name, {"status": {"phase": phase}}, space)

    def theirs(self, name: str, where: str, cpu: str = "1") -> None:
        """Another scheduler has placed a Pod."""
        held = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
        self.api.put("pods", name, "team", spec={"schedulerName": DEFAULT, "nodeName": where, "containers": [held]})

    def jobs(self) -> dict[str, str]:
        """The status of each job, by its name."""
        assert self.home.host is not None
        return {job.name: job_status(job) for job in self.home.host.ledger.jobs.values()}
