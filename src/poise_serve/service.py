"""One service: its replicas behind a Unix socket, and the batcher that decides which requests go to which replica."""

import asyncio
import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Protocol, cast

import msgspec
from msgspec.structs import replace

from poise.drivers import sockets
from poise.model.servicefile import MOST_AT_ONCE
from poise.model.serving import Limits
from poise.model.spec import check_name
from poise.units import MILLISECOND, SECOND, format_duration
from poise_serve.kernel.batcher import Batch, Batcher, Effect, Refuse, Replace, process_of
from poise_serve.kernel.lanes import gives_way
from poise_serve.kernel.quarantine import LOSSES, Quarantine, digest
from poise_serve.kernel.scaler import Seen
from poise_serve.kernel.turns import Turns
from poise_serve.lately import Recent
from poise_serve.service_metrics import ServiceMetrics
from poise_serve.shared import Reader, Writer, make_buffer
from poise_serve.streams import Stream, Streamed
from poise_serve.tracing import Batches, Traced, Tracing, current
from poise_serve.wire import (
    ANYTHING,
    Answer,
    Answers,
    Broken,
    Drop,
    Frames,
    FromReplica,
    Hello,
    Part,
    ToReplica,
    Work,
    decode_from_replica,
    framed,
)

STOOD_STILL = 1 * SECOND
"""A timer this late, in nanoseconds, means that this machine was paused and also read nothing from its replicas."""

AHEAD = 10 * MILLISECOND
"""Time before the expected end of a batch at which a full queue sends the next one. The loop may be busy for this long
with other requests, or with the answers of the previous batch.
"""

DIALLED_AGAIN = 1.0
"""Seconds before accepting connections again after running out of file descriptors."""


Tell = Callable[["Answer | Refuse"], None]


class Asker(msgspec.Struct, frozen=True):
    """The requesting tenant, and whether it may `use` a cached answer and `keep` (store) its own in the cache.
    `client`: its key, otherwise its address. `came`: when the gateway got the request, 0 for now.
    """

    tenant: str = ""
    use: bool = True
    keep: bool = True
    client: str = ""
    came: int = 0

    def saying(self, name: bytes, value: bytes) -> "Asker":
        """Apply a request header, if it is a relevant one. Raises `SpecError` for an invalid tenant name."""
        if name == b"x-poise-tenant":
            tenant = value.decode("latin-1")
            check_name(tenant, "X-Poise-Tenant")
            return replace(self, tenant=tenant)
        if name == b"cache-control":
            said = [one.strip().lower() for one in value.split(b",")]
            keep = self.keep and b"no-store" not in said
            return replace(self, keep=keep, use=keep and self.use and b"no-cache" not in said)
        return self


ANYBODY = Asker()


class Asked(Protocol):
    """Receiver of requests: a service, or a layer in front of one."""

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        """Submit a request and return its number. `tell` gets the answer once, unless `cancel` is called first."""

    def cancel(self, number: int) -> None:
        """Drop this request; its client has disconnected."""


Listener = Callable[[bytes, "Answer | Refuse", int], None]
"""Called for each answered or refused request with its body, the outcome, and nanoseconds since its arrival."""


class Pending(msgspec.Struct):
    """A request with a waiting client. A `patient` one may miss the latency objective."""

    body: bytes
    tell: Tell
    came: int
    patient: bool
    traced: Traced | None
    client: str


class Service:
    """Accepts replicas, holds requests until they are answered, and carries out the batcher's effects. A replica that
    serves several requests at once has as many slots, and each is a replica to the batcher.
    """

    def __init__(
        self, name: str, limits: Limits, path: Path, metrics: ServiceMetrics, tracing: Tracing | None = None
    ) -> None:
        """`path` is the Unix socket that replicas connect to."""
        self.name = name
        self.batcher = Batcher(limits, ahead=AHEAD)
        self.quarantine = Quarantine()
        self.path = path
        self.on_hang: Callable[[str], None] = lambda name: None
        """Called with the name of a hung replica, which must then be killed."""
        self.may_join: Callable[[str, int], bool] = lambda job, epoch: False
        """Whether this job runs a replica of the service, and the epoch is not older than its latest attempt. Checks
        connections from other machines.
        """
        self.turns_of: Callable[[str], Turns | None] = lambda replica: None
        """Returns the turns of a replica's process, if other services share it."""
        self.watchers: list[Callable[[], None]] = []
        """Called when a replica becomes ready or disconnects."""
        self.listeners: list[Listener] = []
        self.ever_ready = False
        self.forms = ANYTHING
        """Schema of the model's inputs and outputs, from its latest replica."""
        self._metrics = metrics
        self._batches = Batches(name, tracing)
        self._pending: dict[int, Pending] = {}
        self._of: Counter[str] = Counter()  # pending requests by client
        self._channels: dict[str, _Channel] = {}  # by slot
        self._streams: dict[int, Stream] = {}
        self._sent: dict[int, dict[int, bytes]] = {}  # bodies in progress by batch, including cancelled requests
        self._asked = 0
        self.seen = Seen()
        self._listening: socket.socket | None = None
        self._connecting: set[asyncio.Task[object]] = set()
        self._dialled: set[_Channel] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._gathering: asyncio.Handle | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        self._listening = sockets.listen(self.path)
        self._listening.setblocking(False)
        self._listen()

    async def stop(self) -> None:
        """Disconnect the replicas and refuse all pending requests."""
        for handle in (self._timer, self._gathering):
            if handle is not None:
                handle.cancel()
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        for connecting in self._connecting:
            connecting.cancel()
        for channel in list(self._dialled):  # including replicas that are still loading
            channel.close()
        for number in list(self._pending):
            self.batcher.cancel(number)
            self._refuse(Refuse(number, "ending", "the gateway is ending"))
        self.path.unlink(missing_ok=True)

    async def drained(self) -> None:
        """Wait until all accepted requests are answered."""
        while self._pending:
            self._changed.clear()
            await self._changed.wait()

    async def ready(self) -> None:
        """Wait until a replica is ready."""
        while not self._channels:
            self._changed.clear()
            await self._changed.wait()

    @property
    def replicas(self) -> int:
        return len(set(self._channels.values()))

    def has(self, job: str) -> bool:
        """Whether a replica of this job is ready."""
        return any(name.partition(".")[0] == job for name in self._channels)

    def is_busy(self, job: str) -> bool:
        """Whether a replica of this job has requests."""
        replicas = [one for name, one in self.batcher.replicas.items() if name.partition(".")[0] == job]
        return any(one.requests for one in replicas)

    def drain(self, job: str) -> None:
        """Stop sending requests to the replicas of this job."""
        for name in self._channels:
            if name.partition(".")[0] == job:
                self.batcher.drain(name)

    def leave_behind(self, job: str, epoch: int) -> None:
        """Disconnect the replicas of this job's attempts before `epoch`, even on unreachable machines, and send their
        requests to other replicas.
        """
        for name, channel in list(self._channels.items()):
            if name.partition(".")[0] == job and _epoch_of(name) < epoch and name in self._channels:
                channel.abort()
                self._take_down(channel)

    def note_start_up(self, took: int) -> None:
        """Note the nanoseconds that the latest replica took to start."""
        self.batcher.start_up = took

    def measure(self) -> None:
        """Set the gauges that are computed only when metrics are scraped."""
        rooms = [replica.curve.room for replica in self.batcher.replicas.values() if replica.curve.room]
        self._metrics.now(self.batcher.waiting, self.batcher.serving, self.replicas, min(rooms, default=0))

    def recent(self, window: int) -> Recent:
        """Metrics of the last `window` nanoseconds."""
        return self._metrics.lately.recent(window, time.monotonic_ns())

    # --- requests ----------------------------------------------------------------------------------------------------

    def ask(self, body: bytes, tell: Tell, timeout: int = 0, deferred: bool = False, asker: Asker = ANYBODY) -> int:
        """See `Asked.ask`. `timeout` is in nanoseconds; 0 means that of the service. If the queue is full, the client
        with the most requests gives way.

        If one replica is idle, requests that were read in the same turn of the loop are batched as one arrival.
        """
        now = time.monotonic_ns()
        self._asked += 1
        if self.batcher.waiting >= self.batcher.limits.queue:
            self._make_room(asker.client)
        came = asker.came or now
        self._pending[self._asked] = Pending(body, tell, came, deferred, current.get(), asker.client)
        self._of[asker.client] += 1
        if not self._channels:
            self._metrics.held(1)
        self.seen.ask(len(self._pending))
        suspect = False
        if self.quarantine:
            key = digest(body)
            if held := self.quarantine.held(key, now):
                self._refuse(_held(self._asked, held))
                return self._asked
            suspect = self.quarantine.suspects(key, now)
        if not self.batcher.is_gathering and self.batcher.idle == 1:  # several share what comes at once
            self.batcher.gather()
            self._gathering = asyncio.get_running_loop().call_soon(self._gathered)
        arrived = self.batcher.arrive(self._asked, now, came=came, timeout=timeout, deferred=deferred, suspect=suspect)
        self._do(arrived, now)
        return self._asked

    def _make_room(self, client: str) -> None:
        """If the full queue has a client that must give way to this one, refuse its newest request."""
        found = gives_way(self._of, client)
        for number, pending in reversed(self._pending.items()) if found else ():
            if pending.client == found and self.batcher.queued(number):
                self.batcher.cancel(number)
                message = "the queue is full, and a client with fewer requests took this place in it"
                self._refuse(Refuse(number, "full", message, SECOND))
                return

    def _pop(self, number: int) -> Pending | None:
        """Remove a request that is over; None if it was before."""
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._of[pending.client] -= 1
            if not self._of[pending.client]:
                del self._of[pending.client]
        return pending

    def _gathered(self) -> None:
        """Serve the requests of this turn of the loop."""
        now = time.monotonic_ns()
        self._do(self.batcher.gathered(now), now)

    def suspect(self, body: bytes) -> None:
        """Mark this body as suspect: a replica of another version was lost serving it, perhaps several at once.
        It is quarantined only after this version loses a replica too.
        """
        key, now = digest(body), time.monotonic_ns()
        if not self.quarantine.suspects(key, now):
            self.quarantine.lost(key, now)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Batch the requests of this block as one arrival. Requests cancelled inside the block are never sent."""
        self.batcher.gather()
        try:
            yield
        finally:
            self._gathered()

    def cancel(self, number: int) -> None:
        if self._pop(number) is not None:
            self._streams.pop(number, None)
            self._drop(number)
            self.batcher.cancel(number)
            self._metrics.refused("cancelled", time.monotonic_ns())
            self._changed.set()

    def _drop(self, number: int, but: str = "") -> None:
        """Tell the replicas that serve a request by itself, except the slot `but`, that nobody waits for it."""
        for name, channel in self._channels.items():
            replica = self.batcher.replicas[name]
            if channel.is_called and name != but and number in self._requests_of(name):
                channel.drop(replica.batch)

    # --- replicas ----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept a replica's connection and send it the shared buffers before any message."""
        listening, loop = self._listening, asyncio.get_running_loop()
        if listening is None:
            return
        try:
            dialled, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError:  # out of file descriptors: listen again later
            loop.remove_reader(listening)
            loop.call_later(DIALLED_AGAIN, self._listen)
            return
        dialled.setblocking(False)
        buffers: list[int] = []
        try:
            buffers.extend(make_buffer() for _ in range(2))  # one by one, so that none is forgotten
            socket.send_fds(dialled, [b"\0"], buffers)
        except OSError:
            for buffer in buffers:
                os.close(buffer)
            dialled.close()
            return
        channel = _Channel(self, Writer(buffers[0]), Reader(buffers[1]))
        connecting = loop.create_task(loop.connect_accepted_socket(lambda: channel, dialled))
        self._dialled.add(channel)
        self._connecting.add(connecting)
        connecting.add_done_callback(partial(self._connected, channel, dialled))

    def _connected(self, channel: "_Channel", dialled: socket.socket, connecting: "asyncio.Task[object]") -> None:
        self._connecting.discard(connecting)
        if connecting.cancelled() or connecting.exception() is not None:
            channel.release()
            dialled.close()

    def _listen(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def guest(self, name: str) -> "_Channel":
        """Make the channel of a replica on another machine that has authenticated as `name`."""
        channel = _Channel(self, Writer(None), Reader(None), name)
        self._dialled.add(channel)
        return channel

    def joined(self, channel: "_Channel", hello: Hello) -> None:
        now = time.monotonic_ns()
        channel.slots, channel.is_called = [hello.name], bool(hello.at_once)
        if channel.is_called:
            channel.slots = [f"{hello.name}#{slot}" for slot in range(hello.at_once)]
        if (before := self._channels.get(channel.slots[0])) is not None:
            before.close()
            self._take_down(before)
        self._channels |= dict.fromkeys(channel.slots, channel)
        self.forms = hello.forms
        for slot in channel.slots:
            self._do(self.batcher.up(slot, now, hello.known, hello.room, alone=channel.is_called), now)
        self.ever_ready = True
        self._has_changed()

    def _has_changed(self) -> None:
        self._changed.set()
        for watcher in self.watchers:
            watcher()

    def left(self, channel: "_Channel", name: str) -> None:
        """Handle a disconnect. `name` is empty if the replica had not sent its `Hello`."""
        self._dialled.discard(channel)
        if name:
            self._take_down(channel)

    def _take_down(self, channel: "_Channel", how: str = "died") -> None:
        """Remove a replica; its requests are retried elsewhere."""
        slots = [slot for slot in channel.slots if self._channels.get(slot) is channel]
        now = time.monotonic_ns()
        for slot in slots:
            del self._channels[slot]
        self.batcher.gather()  # no other slot of the same replica may be sent anything
        for slot in slots:
            self._is_down(slot, now, how)
        self._do(self.batcher.gathered(now), now)
        if slots:
            self._has_changed()
            if not self._channels:
                self._metrics.held(self.batcher.waiting)

    def _is_down(self, name: str, now: int, how: str = "died") -> None:
        """Retry the replica's requests once, each alone. Refuse a body lost twice, including queued copies of it."""
        self._leave(name, lost=True)
        replica, sent = self.batcher.replicas.get(name), dict[int, bytes]()
        if replica is not None:
            if replica.batch not in self._sent:
                self.batcher.take_back(name, now)
            sent = self._sent.pop(replica.batch, sent)
            self._batches.end(name, replica.batch, 0, f"the replica {how}")
            if replica.next is not None:
                self._sent.pop(replica.next.number, None)
                self._batches.end(name, replica.next.number, 0, f"the replica {how} before it began")
        for number in self._requests_of(name):
            self._cut(number, name, f"the replica {how}", now)
        requests = [] if replica is None else replica.requests
        lost = {one.number: sent[one.number] for one in requests if one.number in sent and not one.answered}
        held = {body: self.quarantine.lost(digest(body), now) for body in set(lost.values())}
        if any(held.values()):
            for number, body in [(number, one.body) for number, one in self._pending.items()]:
                if number not in lost and held.get(body):
                    self.batcher.cancel(number)
                    self._refuse(_held(number, held[body]))
        effects = self.batcher.down(name, now, how)
        for place, effect in enumerate(effects):
            if isinstance(effect, Refuse) and (pause := held.get(lost.get(effect.request, b""), 0)):
                effects[place] = replace(effect, message=f"{effect.message}; {_for_how_long(pause)}")
        self._do(effects, now)

    def slot_of(self, slots: Sequence[str], number: int) -> str:
        """Return the slot that serves this batch; the first if none does."""
        replicas = (self.batcher.replicas.get(slot) for slot in slots)
        return next((one.name for one in replicas if one is not None and one.batch == number), slots[0])

    def fits(self, name: str, message: Answers) -> bool:
        """Whether the message matches the replica's current batch; true if it has another batch. A mismatch would leave
        clients waiting forever.
        """
        replica = self.batcher.replicas.get(name)
        if replica is None or replica.batch != message.number:
            return True
        in_bounds = message.took >= 0 and 0 <= message.items <= self.batcher.limits.batch
        return in_bounds and len(message.answers) == len(replica.requests)

    def heard(self, name: str, message: Answers | Broken | Part) -> None:
        now = time.monotonic_ns()
        if isinstance(message, Part):
            self._pass_on(name, message, now)
            return
        self._leave(name)
        self._sent.pop(message.number, None)
        if self.batcher.is_gathering:
            self._gathered()
        if isinstance(message, Broken):
            self._metrics.broken(message.why)
            self._batches.end(name, message.number, 0, message.message)
            for number in self._requests_of(name):
                self._cut(number, name, message.message, now)
            broke = self.batcher.no_memory if message.why == "memory" else self.batcher.broke
            self._do(broke(name, message.number, message.message, now), now)
            return
        asked = self._requests_of(name)
        told, effects = self.batcher.answered(name, message.number, message.took, message.items, now, message.room)
        self._do(effects, now)  # send the next batch first: it is on the critical path
        by_number = dict(zip(asked, message.answers, strict=False))
        self._metrics.batch(len(asked), message.took, now)
        self._batches.end(name, message.number, len(asked))
        self.seen.busy += message.took // (len(self._channels[name].slots) if name in self._channels else 1)
        for number in told:
            self._tell(number, by_number[number], now)
        if self.batcher.limits.objective:
            asyncio.get_running_loop().call_soon(self._written)  # after the tasks that write these answers
        for number in asked:
            if (stream := self._stream_from(number, name)) is not None:
                stream.end()
                self._tell(number, by_number[number], now)

    def _written(self) -> None:
        self.batcher.written(time.monotonic_ns())

    # --- answers in parts --------------------------------------------------------------------------------------------

    def _pass_on(self, name: str, part: Part, now: int) -> None:
        """Pass on a part of an answer, unless nobody waits for it."""
        replica = self.batcher.replicas.get(name)
        if replica is None or replica.batch != part.number:
            return
        request = replica.requests[0]
        stream = self._streams.get(request.number)
        if stream is None and not request.over and (pending := self._pending.get(request.number)) is not None:
            stream = Stream(name, partial(self.cancel, request.number))
            self._streams[request.number] = stream
            tell, pending.tell = pending.tell, lambda _: None
            self._drop(request.number, but=name)
            asyncio.get_running_loop().call_later((request.due - now) / SECOND, self._is_late, request.number, stream)
            tell(Streamed(200, part.kind, b"", stream))
        if stream is None or stream.slot != name:
            self._channels[name].drop(part.number)
            return
        self.batcher.begun(name, now)
        stream.put(part.body)

    def _stream_from(self, number: int, name: str) -> Stream | None:
        """Take the stream of this request's answer, if this replica makes it."""
        stream = self._streams.get(number)
        return self._streams.pop(number) if stream is not None and stream.slot == name else None

    def _cut(self, number: int, name: str, why: str, now: int) -> None:
        """End an answer of which parts were passed on."""
        if (stream := self._stream_from(number, name)) is not None:
            stream.end(why)
            self._tell(number, Answer(500, "", b""), now)

    def _is_late(self, number: int, stream: Stream) -> None:
        if self._streams.get(number) is stream:
            self._drop(number)
            self._cut(number, stream.slot, "the time for this answer is over", time.monotonic_ns())

    def _requests_of(self, name: str) -> list[int]:
        replica = self.batcher.replicas.get(name)
        return [request.number for request in replica.requests] if replica is not None else []

    # --- the batcher's effects ---------------------------------------------------------------------------------------

    def _do(self, effects: Sequence[Effect], now: int) -> None:
        for effect in effects:  # send batches first: a client that is notified may cancel one
            if isinstance(effect, Batch):
                self._send(effect, now)
        for effect in effects:
            if isinstance(effect, Refuse):
                self._refuse(effect)
            elif isinstance(effect, Replace):
                self._replace(effect.replica)
        self._arm(now)

    def _replace(self, name: str) -> None:
        """Disconnect a hung replica at once, so that its requests are retried before its process has exited."""
        if (channel := self._channels.get(name)) is not None:
            channel.abort()
            self._take_down(channel, "hung")
        self.on_hang(name)

    def _send(self, batch: Batch, now: int) -> None:
        requests = [self._pending[number] for number in batch.requests]
        turns = self.turns_of(process_of(batch.replica))
        if turns is None:
            self._begin(batch, requests, now)
            return

        def begin() -> None:
            now = time.monotonic_ns()
            self.batcher.starts(batch.replica, now)
            self._begin(batch, requests, now)

        turns.enter((self.name, batch.replica), self.batcher.replicas[batch.replica].suspected, begin)

    def _begin(self, batch: Batch, requests: Sequence[Pending], now: int) -> None:
        """Send a batch to its replica."""
        bodies = [request.body for request in requests]
        self._metrics.sent([now - request.came for request in requests], now)
        self._sent[batch.number] = dict(zip(batch.requests, bodies, strict=True))
        traceparent = self._batches.begin(batch.number, [request.traced for request in requests])
        self._channels[batch.replica].send(batch, bodies, traceparent)

    def _leave(self, name: str, *, lost: bool = False) -> None:
        """End the turn of a replica in its process. `lost`: it has disconnected."""
        if (turns := self.turns_of(process_of(name))) is not None:
            turns.leave((self.name, name), lost=lost)

    def _refuse(self, refuse: Refuse) -> None:
        pending = self._pop(refuse.request)
        if pending is not None:
            now = time.monotonic_ns()
            self._metrics.refused(refuse.why, now)
            if self._counts(pending, now):
                self.seen.refuse(refuse.why, max(refuse.foreseen, now - pending.came))
            pending.tell(refuse)
            if self.listeners:
                self._heard(pending, refuse, now)
            self._changed.set()

    def _tell(self, number: int, answer: Answer, now: int) -> None:
        pending = self._pop(number)
        if pending is not None:
            self._metrics.answered(answer.status, now - pending.came, now, patient=pending.patient)
            if self.quarantine:
                self.quarantine.answered(digest(pending.body))
            if self._counts(pending, now):
                self.seen.took.append(now - pending.came)
            pending.tell(answer)
            if self.listeners:
                self._heard(pending, answer, now)
            if not self._pending:
                self._changed.set()

    def _counts(self, pending: Pending, now: int) -> bool:
        """Whether the objective applies: the request is not patient and did not wait for a replica to start."""
        return not pending.patient and pending.came >= self.batcher.started(now)

    def _heard(self, pending: Pending, told: Answer | Refuse, now: int) -> None:
        for listener in tuple(self.listeners):
            listener(pending.body, told, now - pending.came)

    def _arm(self, now: int) -> None:
        """Set the timer to the batcher's next wakeup. Keep a current timer that fires earlier."""
        if self.batcher.is_gathering or (due := self.batcher.wakeup()) is None:
            return
        if self._timer is not None:
            if now < self._timer_at <= due:
                return
            self._notice_pause(now)
            self._timer.cancel()
        self._timer_at = max(now, due)
        self._timer = asyncio.get_running_loop().call_later(max(0, due - now) / SECOND, self._on_timer)

    def _notice_pause(self, now: int) -> None:
        """Report a pause to the batcher if the timer is far too late: a paused container or a suspended laptop."""
        if (late := now - self._timer_at) > STOOD_STILL:
            self.batcher.stood_still(late, now)

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic_ns()
        self._notice_pause(now)
        self._do(self.batcher.tick(now), now)


class _Channel(asyncio.Protocol):
    """One replica's connection. `known_as` is its authenticated name, if it has one."""

    def __init__(self, service: Service, writer: Writer, reader: Reader, known_as: str = "") -> None:
        self._service = service
        self._known_as = known_as
        self._writer, self._reader = writer, reader
        self.slots: list[str] = []
        """Names of its slots, once it is ready."""
        self.is_called = False
        """Whether it serves each request by itself."""
        self._name = ""
        self._frames = Frames()
        self._released = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.add(data):
                if not self._take(decode_from_replica.decode(frame)):
                    self.close()
                    return
        except msgspec.DecodeError:
            self.close()

    def _take(self, message: FromReplica) -> bool:
        """Handle a message. Returns whether it was valid."""
        if isinstance(message, Hello):
            if self._name or not all(size > 0 and 0 <= took < inf for size, took in message.known):
                return False
            if (self._known_as and message.name != self._known_as) or not 0 <= message.at_once <= MOST_AT_ONCE:
                return False
            self._name = message.name
            if message.at_once:
                self._writer.close()  # a buffer holds one batch at a time
                self._writer = Writer(None)
            self._service.joined(self, message)
        elif self._name:
            name = self._service.slot_of(self.slots, message.number)
            if isinstance(message, Answers):
                try:
                    message = self._with_bodies(message)
                except (ValueError, IndexError):
                    return False
                if not self._service.fits(name, message):
                    return False
            self._service.heard(name, message)
        return True

    def _with_bodies(self, message: Answers) -> Answers:
        """Copy large answers out of the shared buffer before the next batch overwrites it."""
        for place in message.places:
            if place.number < 0:
                raise ValueError("a place of no answer")
            found = message.answers[place.number]
            message.answers[place.number] = Answer(found.status, found.kind, bytes(self._reader.at(place)))
        return message

    def connection_lost(self, _: Exception | None) -> None:
        self.release()

    def release(self) -> None:
        """Close the buffers and leave the service."""
        if self._released:
            return
        self._released = True
        self._writer.close()
        self._reader.close()
        self._service.left(self, self._name)

    def send(self, batch: Batch, bodies: Sequence[bytes], traceparent: str) -> None:
        """Send a batch. Without memory for its bodies, disconnect the replica; its requests are then retried."""
        if self._transport is None or self._transport.is_closing():
            return
        try:
            small, places = self._writer.place(bodies, beside=batch.ahead)
        except OSError:
            self.close()
        else:
            self._write(Work(batch.number, batch.padded, small, places, traceparent, batch.ahead))

    def drop(self, number: int) -> None:
        """Tell the replica that nobody waits for this request."""
        if self._transport is not None and not self._transport.is_closing():
            self._write(Drop(number))

    def _write(self, message: ToReplica) -> None:
        if self._transport is not None:
            self._transport.write(framed(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once and discard unsent data, because the replica will not read it."""
        if self._transport is not None:
            self._transport.abort()


def _held(number: int, held: int) -> Refuse:
    message = f"{LOSSES} replicas died, or were lost, while they served the same request; {_for_how_long(held)}"
    return Refuse(number, "quarantined", message, held)


def _for_how_long(held: int) -> str:
    return f"it is refused for {format_duration(held)}"


def _epoch_of(name: str) -> int:
    """Return the epoch at the end of the name of a replica, or of a slot of it."""
    epoch = process_of(name).rpartition(".")[2]
    return int(epoch) if epoch.isdecimal() and len(epoch) < 20 else 0


__all__ = ["ANYBODY", "Asked", "Asker", "Listener", "Service", "Tell"]
