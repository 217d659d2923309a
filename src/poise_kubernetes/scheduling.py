"""The scheduler of a cluster, as a process: `--on kubernetes:scheduler=NAME`.

It places the Pods whose `schedulerName` is NAME. `placing.py` says how; here are the ways out: a channel for each node
to the control plane of this machine, jobs through its API, and writes to the API server by a few threads. Reasons
become Events: one for each Pod and reason, at most `EVENTS_A_SECOND`, and a repeated one is counted in place.
"""

import asyncio
import bisect
import contextlib
import hashlib
import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import uvloop

from poise.client import Client
from poise.config import Home
from poise.decoding import convert, json_decoder, msgpack_decoder
from poise.drivers.kubernetes.api import Api, Away, Refused
from poise.drivers.kubernetes.credentials import Access, find_access
from poise.drivers.kubernetes.watching import Watched
from poise.drivers.places import log_paths
from poise.drivers.security import read_token
from poise.drivers.sockets import connect as reach_socket
from poise.drivers.system import SystemClock, settle_memory
from poise.drivers.whole import write_whole
from poise.errors import Conflict, ErrorRecord, NotFound, PoiseError
from poise.kernel.frames import Broken, Frames
from poise.model.messages import Attempt, Exec, FromAgent, Get, Launch, Left, ToAgent, ToNode
from poise.model.reports.questions import Explanation
from poise.model.reports.status import Request
from poise.units import SECOND, format_duration
from poise_kubernetes import manifests
from poise_kubernetes.claims import NO_CHANGES, Calls, DeviceChanges, Granted, reserve
from poise_kubernetes.cluster import ALL_ENDED, no_cluster
from poise_kubernetes.grouping import groups, least_in, name_of, paths_of
from poise_kubernetes.lines import Line
from poise_kubernetes.owner import ensure_owner
from poise_kubernetes.placing import Asked, Placer, Waiting, Written
from poise_kubernetes.published import DEVICES, MOUNTS, Published
from poise_kubernetes.records import NodeObject, PodObject
from poise_kubernetes.security import create_task
from poise_kubernetes.settings import Settings
from poise_kubernetes.volumes import VolumeChanges, VolumeClaim, provision

LOOK_SECONDS = 0.1
"""Maximum time between two checks of the cluster, for effects of time alone, and between two checks whether to end."""

WRITERS = 32
"""Threads that write to the API server; each waits for its answer. A server takes hundreds of writes at a time."""

BUSY = (429, 503, 504)
"""Answers after which nobody knows whether a write is done, or which ask for patience."""

CHANNEL = "/v1/channel"
RECONNECT_SECONDS = 0.1, 1.0
OPEN_SECONDS = 10.0

OUT_OF_REACH = 126
"""Exit code of a command beside a Pod."""

REFUSED_SECONDS = 5.0
"""Time until a Pod that the API server refuses, as beyond a quota, is created again."""

OWNER_SECONDS = 10
"""For this long, the Secret that owns Pods is taken to exist. The cluster collects a Pod whose owner is gone."""

CHECKED_AT_ONCE = 10_000
"""Jobs in one request whether they have ended."""

MAX_LOG = 256 * 2**20
"""Most bytes of the output of a task that are kept."""

TELL_SECONDS = 2.0
"""Interval of Events, and how long a Pod has waited before it gets the first one."""

EVENTS_A_SECOND = 5
TOLD = 20
"""Most waiting jobs, or Pods without one, that are looked at in an interval: all nodes are asked about each."""

MOST_TOLD = 200
"""Most of them of which `poise explain` shows more than the ledger knows."""

REPEAT_SECONDS = 300.0
"""The same reason is counted again after this long."""

_log = logging.getLogger("poise.kubernetes")
_encode = msgspec.msgpack.Encoder().encode
_to_agent: msgspec.msgpack.Decoder[tuple[int, ToNode]] = msgpack_decoder(tuple[int, ToNode])
_pod = json_decoder(PodObject)


def reserved(
    api: Calls, pod: PodObject, node: str, granted: Sequence[Granted], unbound: Sequence[VolumeClaim]
) -> tuple[Written, str]:
    """Write the devices of a Pod into its claims, and its node into its unbound claims of volumes. Return the outcome,
    and the reason if it failed or must wait. Raises `Away`, and `Refused` if the server is too busy.
    """
    try:
        if not all(reserve(api, pod, one) for one in granted):
            return "gone", "its ResourceClaim was deleted, or has other devices"
        found = [provision(api, claim, node) for claim in unbound]
    except Refused as refused:
        if refused.status not in (400, 403, 404, 409, 422):
            raise
        return "refused" if refused.status in (403, 409) else "gone", f"its claim: {refused}"
    why = next((why for _, why in found if why), "")
    return "bound" if not why else "refused" if all(may for may, _ in found) else "gone", why


def outcome_of(pod: PodObject, notes: Mapping[str, str], node: str) -> Written:
    """Return what has become of a binding with these annotations, whose answer was lost, or refused."""
    own = notes.items() <= (pod.metadata.annotations or {}).items()
    if pod.spec.node_name == node and own and not pod.is_deleted:
        return "bound"  # it may have ended already
    return "gone" if pod.is_deleted or pod.ended or pod.spec.node_name else "refused"


class _Line:
    """The channel of one node, opened again whenever it is lost."""

    def __init__(self, owner: "Scheduler", node: str) -> None:
        self._owner, self._node = owner, node
        self._sent, self._heard = Frames(), Frames()
        self._line: Line | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    def say(self, message: FromAgent | Left) -> None:
        if self._line is not None:
            self._line.send(_encode((self._sent.number(), message)))

    def hang(self) -> None:
        if self._line is not None:
            self._line.abort()

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        pause = RECONNECT_SECONDS[0]
        while True:
            try:
                await self._serve()
            except (OSError, PoiseError) as error:
                _log.debug("node %s has no channel: %s", self._node, error)
                if self._line is not None:
                    pause = RECONNECT_SECONDS[0]
            finally:
                self._line = None
                self._owner.disconnected(self._node)
            await asyncio.sleep(pause)
            pause = min(RECONNECT_SECONDS[1], 2 * pause)

    async def _serve(self) -> None:
        """Open the channel, and wait until it is lost."""
        loop, token = asyncio.get_running_loop(), read_token(self._owner.home)
        sock = reach_socket(self._owner.home.socket, None)
        sock.setblocking(False)
        transport, line = await loop.create_connection(lambda: Line(CHANNEL, token, self._hear), sock=sock)
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await line.opened
            self._line, self._sent, self._heard = line, Frames(), Frames()
            self._owner.connected(self._node)
            await line.closed
        finally:
            transport.abort()

    def _hear(self, frame: bytes) -> None:
        try:
            serial, message = _to_agent.decode(frame)
            if not self._heard.hears(serial):
                return
            if isinstance(message, ToAgent):
                self._owner.hear(self._node, message)
            elif isinstance(message, Exec | Get):
                self.say(Left(name=message.name, code=OUT_OF_REACH, note=self._owner.beside(message.attempt)))
        except (Broken, msgspec.DecodeError) as error:
            _log.debug("node %s has no channel: %s", self._node, error)
            self.hang()


class Scheduler:
    """The `Doors` of a placer. All of it runs on one loop; threads wait for the API server and the control plane."""

    def __init__(
        self, access: Access, own: str, settings: Settings, home: Home, tell: Callable[[Sequence[Request]], None]
    ) -> None:
        self.home = home
        self._access, self._settings, self._tell = access, settings, tell
        self._clock = SystemClock.of_the_boot()
        self._loop = asyncio.get_running_loop()
        self.placer = Placer(own, self)
        self._lines: dict[str, _Line] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0  # when the timer ticks
        self._writers = ThreadPoolExecutor(WRITERS, "poise-write", self._open_api)
        self._canceller = ThreadPoolExecutor(1, "poise-cancel", self._open_client)
        self._unsent: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._ends = False
        self._broken: Exception | None = None
        self._checks = False
        self._latest: int | None = None  # number of the latest job, for the thread of submissions
        self._telling = ThreadPoolExecutor(1, "poise-tell", self._open_both)
        self._own = threading.local()
        self._events = Events()
        self._reasons: dict[str, str] = {}  # why jobs and Pods wait, as far as only this process knows, by name
        self._home_id, self._space = own, settings.namespace or access.namespace
        self._restricted = False  # whether the Pods of tasks must comply with a profile of Pod Security
        self._owned: dict[str, str] = {}
        self._owned_at = 0
        self._owning = threading.Lock()
        self._stirred = True  # until the first look, which needs all lists
        self._looks = False
        mine = {"fieldSelector": f"spec.schedulerName={settings.scheduler}"}
        others = {"fieldSelector": f"spec.schedulerName!={settings.scheduler},{ALL_ENDED}"}
        self._nodes = Watched(Api(access), "/api/v1/nodes", NodeObject, changed=self._stir)
        self._others = Watched(Api(access), "/api/v1/pods", PodObject, others, changed=self._stir)
        self._mine = Watched(Api(access), "/api/v1/pods", PodObject, mine, changed=self._stir)
        self._published = Published(access, DEVICES, DeviceChanges, self._stir)
        self._mounts = Published(access, MOUNTS, VolumeChanges, self._stir)
        self._watched: Mapping[str, Watched[Any] | Published[Any]] = {
            "nodes": self._nodes,
            "pods of all namespaces": self._others,
            "pods": self._mine,
            "devices": self._published,
            "volumes": self._mounts,
        }

    def list(self) -> None:
        """Read the cluster for the first time. Raises `Fault` if it does not answer, or refuses."""
        for what, one in self._watched.items():
            try:
                one.list()
            except (Away, Refused) as error:
                raise no_cluster(self._access, what, error) from None

    async def run(self, until: Callable[[], bool]) -> None:
        """Work until this function returns true."""
        for one in self._watched.values():
            one.start()
        threading.Thread(target=self._submit_all, name="poise-submit", daemon=True).start()
        telling = asyncio.create_task(self._tell_reasons())
        try:
            self._look()
            settle_memory()  # a full garbage collection with all these nodes would delay arriving Pods by 50 ms
            while not until():
                self._look()
                await asyncio.sleep(LOOK_SECONDS)
                if self._broken is not None:
                    raise self._broken
        finally:
            telling.cancel()
            self._ends = True
            self._unsent.put(None)
            for line in self._lines.values():
                line.close()
            for one in self._watched.values():
                one.stop()
            for pool in (self._writers, self._canceller, self._telling):
                pool.shutdown(wait=False, cancel_futures=True)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _stir(self) -> None:
        """Check the cluster soon, because it has changed. Called by the threads of watches."""
        if not self._stirred:
            self._stirred = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._stirred = self._looks = False  # what changes from here on needs another look
        nodes, others, mine = self._nodes.news(), self._others.news(), self._mine.news()
        devices, volumes = self._published.news() or NO_CHANGES, self._mounts.news()
        self._took(lambda: self.placer.look(nodes, others, mine, self._now(), devices, volumes))

    def _now(self) -> int:
        return self._clock.now()

    def _took(self, act: Callable[[], None]) -> None:
        """Let the placer act, and set the timer for its next action. After an error, this process ends; the next one
        reads its state from the Pods.
        """
        try:
            act()
        except Exception as error:
            self._broken = self._broken or error
            return
        if self.placer.is_stirred and not self._looks:
            self._looks = True
            self._loop.call_soon(self._look)
        due = self.placer.wakeup()
        if due is not None and (self._timer is None or due < self._due):
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = self._loop.call_later(max(0.0, (due - self._now()) / SECOND), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._took(lambda: self.placer.tick(self._now()))

    def connected(self, node: str) -> None:
        self._took(lambda: self.placer.connected(node, self._now()))

    def disconnected(self, node: str) -> None:
        self._took(lambda: self.placer.disconnected(node, self._now()))

    def hear(self, node: str, message: ToAgent) -> None:
        self._took(lambda: self.placer.hear(node, message, self._now()))

    def beside(self, attempt: Attempt) -> str:
        """Return how to run a command beside an attempt: Poise has no process in its Pod."""
        pod = self.placer.pod_of(attempt)
        if pod is None:
            return "its task has no Pod now"
        space, name = pod.metadata.namespace, pod.metadata.name
        return f"Poise cannot reach into Pods: use `kubectl exec`, `cp` or `port-forward` with `-n {space} {name}`"

    def _answer(self, act: Callable[[], None]) -> None:
        """Let the placer do something, from a thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._took, act)

    # --- threads ------------------------------------------------------------------------------------------------------

    def _open_api(self) -> None:
        self._own.api = Api(self._access)

    def _open_client(self) -> None:
        self._own.client = Client(self.home)

    def _open_both(self) -> None:
        self._open_api()
        self._open_client()

    # --- ways out -----------------------------------------------------------------------------------------------------

    def dial(self, node: str) -> None:
        self._lines[node] = _Line(self, node)

    def say(self, node: str, message: FromAgent) -> None:
        self._lines[node].say(message)

    def hang(self, node: str) -> None:
        self._lines[node].hang()

    def leave(self, node: str) -> None:
        self._lines.pop(node).close()

    def submit(self, asked: Sequence[Asked]) -> None:
        for one in asked:
            self._unsent.put(one)

    def _submit_all(self) -> None:
        """Submit jobs as they arrive, over one connection. A job whose name is taken is not submitted."""
        client = Client(self.home)
        while not self._ends:
            sent, over = deque[Asked](), threading.Event()
            try:
                if self._latest is None:
                    self._latest = max((int(job.id[1:]) for job in client.jobs(everything=True, latest=1)), default=0)
                keys = (sent[-1].key for _ in itertools.count())
                for receipt in client.submit_stream(self._specs(sent, over), keys):
                    one = sent.popleft()
                    if receipt.error is not None and receipt.error.code == Conflict.default_code:
                        plain = {of: value for of, value in one.spec.items() if of != "name"}
                        [receipt] = client.submit_stream([plain], [one.key])
                    why = refusal_of(receipt.error) if receipt.error is not None else ""
                    if why:
                        _log.warning("%s: %s", one.spec["name"], why)
                    self._submitted(one.key, receipt.job, self._over(client, receipt.job), why)
            except PoiseError as error:
                _log.warning("the control plane does not accept jobs: %s", error)
                over.set()
                self._unsent.put(None)
                time.sleep(RECONNECT_SECONDS[1])
                for one in sent:
                    self._submitted(one.key, "", "", str(error))

    def _specs(self, sent: deque[Asked], over: threading.Event) -> Iterator[dict[str, Any]]:
        """Yield jobs to submit, each once it is noted in `sent`, until there is `None` instead of a job. Once it is
        `over`, another one takes its place, and gets the job that this one has taken from it.
        """
        while (one := self._unsent.get()) is not None:
            if over.is_set():
                self._unsent.put(one)
                return
            sent.append(one)
            yield one.spec

    def _submitted(self, key: str, job: str, over: str, why: str) -> None:
        self._answer(lambda: self.placer.submitted(key, job, self._now(), over, why))

    def _over(self, client: Client, job: str) -> str:
        """Return the status of a job that an earlier process has submitted and that is over; empty for any other."""
        number = int(job[1:] or 0)
        if self._latest is None or number > self._latest:
            self._latest = number
            return ""
        known = client.job(job) if job else None
        return known.status if known is not None and known.ended else ""

    def cancel(self, job: str) -> None:
        self._canceller.submit(self._cancel, job)

    def _cancel(self, job: str) -> None:
        with contextlib.suppress(Conflict, NotFound):  # it is over
            self._own.client.cancel(job)

    def check(self, jobs: Sequence[str]) -> None:
        if not self._checks:  # else the control plane does not answer
            self._checks = True
            self._canceller.submit(self._check, jobs)

    def _check(self, jobs: Sequence[str]) -> None:
        try:
            found: dict[str, str] = {}
            for place in range(0, len(jobs), CHECKED_AT_ONCE):
                found |= self._own.client.ended_jobs(jobs[place : place + CHECKED_AT_ONCE])
            self._answer(lambda: self.placer.ended(found, self._now()))
        except PoiseError as error:
            _log.warning("the control plane does not say which jobs have ended: %s", error)
        finally:
            self._checks = False

    def bind(
        self,
        attempt: Attempt,
        pod: PodObject,
        node: str,
        notes: Mapping[str, str],
        granted: Sequence[Granted],
        unbound: Sequence[VolumeClaim],
    ) -> None:
        self._writers.submit(self._bind, attempt, pod, node, dict(notes), granted, unbound)

    def _bind(
        self,
        attempt: Attempt,
        pod: PodObject,
        node: str,
        notes: dict[str, str],
        granted: Sequence[Granted],
        unbound: Sequence[VolumeClaim],
    ) -> None:
        api: Api = self._own.api
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.metadata.name, "uid": pod.metadata.uid, "annotations": notes},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        why, outcome, after = "", "bound", 0
        try:
            outcome, why = reserved(api, pod, node, granted, unbound)
            if outcome == "bound":
                api.create(f"{_path(pod)}/binding", body)
        except Away as error:
            why, outcome = str(error), "again"
        except Refused as refused:
            why, after = str(refused), round(refused.after * SECOND)
            outcome = "again" if refused.status in BUSY else self._settled(api, pod, notes, node)
        self._answer(lambda: self.placer.bound(attempt, outcome, self._now(), why, after))  # type: ignore[arg-type]

    def _settled(self, api: Api, pod: PodObject, notes: Mapping[str, str], node: str) -> Written:
        """Return what a refused binding means: the Pod is bound already, gone, or free."""
        try:
            found = _pod.decode(api.raw(_path(pod), {}))
        except (Away, msgspec.DecodeError):
            return "again"
        except Refused as refused:
            return "gone" if refused.status == 404 else "again"
        return outcome_of(found, notes, node) if found.metadata.uid == pod.metadata.uid else "gone"

    def create(self, attempt: Attempt, launch: Launch, node: str, device: str, notes: Mapping[str, str]) -> None:
        self._writers.submit(self._create, attempt, launch, node, device, dict(notes))

    def _create(self, attempt: Attempt, launch: Launch, node: str, device: str, notes: dict[str, str]) -> None:
        api: Api = self._own.api
        space = f"/api/v1/namespaces/{quote(self._space)}"
        why, after = "", 0
        pod: PodObject | None = None
        outcome: Written = "bound"
        try:
            parts = self._home_id, self._owner(api), launch, node, device, notes, self._settings
            body = partial(manifests.task_pod, *parts)
            try:
                made, self._restricted = create_task(api, f"{space}/pods", body, self._restricted)
            except Refused as refused:
                if refused.reason != "AlreadyExists":
                    raise
                made = api.get(f"{space}/pods/{quote(manifests.task_name(self._home_id, launch))}")
            pod = convert(made, PodObject)
        except (Away, msgspec.ValidationError) as error:
            why, outcome = str(error), "again"
        except Refused as refused:
            why, after = str(refused), round(max(refused.after, REFUSED_SECONDS) * SECOND)
            outcome = "again" if refused.status in (*BUSY, 500) else "refused"
            outcome = "gone" if refused.status in (400, 413, 422) else outcome
            _log.warning("the pod of %s is refused: %s", attempt, refused)
        self._answer(lambda: self.placer.bound(attempt, outcome, self._now(), why, after, pod))

    def _owner(self, api: Api) -> dict[str, str]:
        """Return the reference to the object that owns the Pods of tasks: deleting it deletes them."""
        with self._owning:
            if not self._owned or self._now() - self._owned_at > OWNER_SECONDS * SECOND:
                self._owned, self._owned_at = ensure_owner(api, self._space, self._home_id), self._now()
            return self._owned

    def fetch(self, attempt: Attempt, pod: PodObject) -> None:
        self._writers.submit(self._fetch, attempt, pod)

    def _fetch(self, attempt: Attempt, pod: PodObject) -> None:
        """Keep the output of a Pod where `poise logs` finds that of any task."""
        out, _ = log_paths(self.home.logs, attempt)
        try:
            text = self._own.api.raw(f"{_path(pod)}/log", {"container": manifests.TASK, "limitBytes": str(MAX_LOG)})
            out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(out, text)
        except (Away, Refused, OSError) as error:
            _log.warning("the output of %s is lost: %s", attempt, error)
        self._answer(lambda: self.placer.fetched(attempt, self._now()))

    def delete(self, pod: PodObject, why: str = "") -> None:
        self._writers.submit(self._delete, pod, why)

    def _delete(self, pod: PodObject, why: str) -> None:
        if why:
            self._events.write(self._own.api, pod, why)
        with contextlib.suppress(Away, Refused):  # it is deleted again while it is there
            self._own.api.delete(_path(pod), {"preconditions": {"uid": pod.metadata.uid}})

    def ask(self, path: str) -> None:
        self._writers.submit(self._ask, path)

    def _ask(self, path: str) -> None:
        least = 0
        for one in paths_of(path):
            try:
                least = least_in(self._own.api.get(one))
                break
            except Refused as refused:
                if refused.status != 404:
                    _log.warning("the size of a group is not known: %s", refused)
            except Away:  # it is asked again
                return
        self._answer(lambda: self.placer.answered(path, least))

    # --- reasons ------------------------------------------------------------------------------------------------------

    async def _tell_reasons(self) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            waiting, now = self.placer.waiting(), self._now()
            old = {
                name_of(one.pods[0].key) if one.pods else one.job: one
                for one in waiting
                if now - one.since >= TELL_SECONDS * SECOND or not one.job
            }
            turn = self._events.in_turn(old)
            for name in turn:
                self._reasons[name] = old[name].why or "; ".join(self.placer.refusals(old[name].job))
            self._reasons = {name: text for name, text in self._reasons.items() if name in old}
            known = [(name, text) for name, text in self._reasons.items() if text][:MOST_TOLD]
            told = [Request(text=f"{name}: {text}", job=old[name].job or name) for name, text in known]
            if rival := self.placer.rival:
                name = self._settings.scheduler
                text = f"the Poise of home {rival} places Pods of scheduler `{name}` too: give one another `scheduler=`"
                told.insert(0, Request(text=text, refused=True))
            self._tell(told)
            found = [(old[name], self._reasons[name]) for name in turn if old[name].pods]
            await asyncio.wrap_future(self._telling.submit(self._tell_all, found))

    def _tell_all(self, waiting: Sequence[tuple[Waiting, str]]) -> None:
        budget = round(EVENTS_A_SECOND * TELL_SECONDS)
        for one, text in waiting:
            if not one.why:
                with contextlib.suppress(PoiseError):
                    text = reason_of(self._own.client.explain(one.job), text)
            for pod in one.pods if text else ():
                if budget > 0 and self._events.write(self._own.api, pod, text):
                    budget -= 1


class Events:
    """What Pods were told. An Event is created once for each reason, and counted then."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        self._last = ""

    def in_turn(self, names: Iterable[str]) -> list[str]:
        """Return the next names, at most `TOLD`; after the last name comes the first one again."""
        ordered = sorted(names)
        place = bisect.bisect_right(ordered, self._last)
        found = (ordered[place:] + ordered[:place])[:TOLD]
        self._last = found[-1] if found else ""
        return found

    def write(self, api: Api, pod: PodObject, text: str) -> bool:
        """Tell a Pod why it waits; return whether that needed a write."""
        now = datetime.now(UTC)
        stamp, moment = now.timestamp(), now.strftime("%Y-%m-%dT%H:%M:%SZ")
        text = text[:1000]
        mark = hashlib.sha256(text.encode()).hexdigest()[:16]
        key = pod.metadata.uid, mark
        at, count = self._told.get(key, (0.0, 0))
        if stamp - at < REPEAT_SECONDS:
            return False
        if len(self._told) > 10_000:
            self._told.clear()
        self._told[key] = stamp, count + 1
        space = pod.metadata.namespace
        path, name = f"/api/v1/namespaces/{quote(space)}/events", f"{pod.metadata.name[:200].rstrip('-.')}.{mark}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": space},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.metadata.name,
                "namespace": space,
                "uid": pod.metadata.uid,
            },
            "reason": "FailedScheduling",
            "message": text,
            "type": "Warning",
            "source": {"component": "poise"},
            "reportingComponent": "poise",
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        try:
            if count:
                api.patch(f"{path}/{quote(name)}", {"count": count + 1, "lastTimestamp": moment})
            else:
                api.create(path, body)
        except (Away, Refused) as error:
            _log.debug("an event was not written: %s", error)
        return True


def reason_of(told: Explanation, refusals: str) -> str:
    """Return one sentence that says why a job waits; empty if it does not. `refusals` are reasons of nodes that the
    ledger does not see: it knows of their label alone.
    """
    known_here = ("OTHER_NODE", "NODE_UNFIT") if refusals else ("OTHER_NODE",)
    for waiting in told.waiting:
        found = [*waiting.reasons, *(of.reasons[0] for of in waiting.refusing[:3] if of.reasons)]
        reasons = list(dict.fromkeys(reason.sentence() for reason in found if reason.code not in known_here))
        reasons += [refusals] if refusals else []
        if waiting.start is not None and waiting.start.likely:
            reasons.append(f"expected to start in {format_duration(waiting.start.likely)}")
        return f"{'; '.join(reasons) or 'it waits for its turn'} (`poise explain {told.name or told.job}`)"
    return ""


def refusal_of(error: ErrorRecord) -> str:
    """Return one sentence that says why a job is refused.

    >>> refusal_of(ErrorRecord(code="E103", message="the quantity is absurd", field="memory", need="less", have="8EiB"))
    'memory: the quantity is absurd (need less, have 8EiB)'
    """
    told = ", ".join(f"{name} {value}" for name, value in (("need", error.need), ("have", error.have)) if value)
    return ": ".join(filter(None, (error.field, error.message))) + (f" ({told})" if told else "")


def _path(pod: PodObject) -> str:
    return f"/api/v1/namespaces/{quote(pod.metadata.namespace)}/pods/{quote(pod.metadata.name)}"


def job_of_pod(settings: Settings, name: str) -> str:
    """Return the name of the job for `NAMESPACE.POD`; empty if the cluster cannot be asked, or has no such Pod."""
    space, _, pod = name.partition(".")
    if not pod:
        return ""
    api = Api(find_access(settings.context))
    try:
        found = _pod.decode(api.raw(f"/api/v1/namespaces/{quote(space)}/pods/{quote(pod)}", {}))
    except (Away, Refused):
        return ""
    finally:
        api.close()
    [group] = groups([found], {})
    return group.name if found.spec.scheduler_name == settings.scheduler else ""


class PodScheduler:
    """What `--on kubernetes:scheduler=NAME` runs: it has no pilots."""

    def __init__(self, settings: Settings, own: str) -> None:
        self._settings, self._own = settings, own
        self._access = find_access(settings.context)
        api = Api(self._access)
        try:
            api.get("/api/v1/nodes", limit="1")
        except (Away, Refused) as error:
            raise no_cluster(self._access, "nodes", error) from None
        finally:
            api.close()

    def work(self, home: str, over: Callable[[], bool], tell: Callable[[Sequence[Request]], None]) -> None:
        uvloop.run(self._work(Home(Path(home)), over, tell))

    async def _work(self, home: Home, over: Callable[[], bool], tell: Callable[[Sequence[Request]], None]) -> None:
        scheduler = Scheduler(self._access, self._own, self._settings, home, tell)
        await asyncio.to_thread(scheduler.list)
        await scheduler.run(over)
