"""The two paths that carry thousands of messages a second, as bare ASGI: streams of submissions, and node channels.

A stream of submissions is `POST /v1/jobs` with `Content-Type: application/x-ndjson`: each line is one submission and is
accepted, logged and answered separately, in order, as soon as it is durable. A node channel is a WebSocket of msgpack
frames.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec

from poise.config import MAX_BODY, Home
from poise.control.admission import Admission
from poise.control.anomalies import Anomalies
from poise.control.chances import Chances
from poise.control.consoles import Consoles
from poise.control.gatekeeper import Gatekeeper
from poise.control.guard import Receive, Scope, Send, hang_up, refuse, secret_of, text_headers
from poise.control.lines import HEAR_NOW, SAY_NOW
from poise.control.notices import Targets
from poise.control.plane import Plane
from poise.control.shares import Turns
from poise.control.storehouse import Storehouse
from poise.control.tally import Held, Minutes
from poise.decoding import json_decoder, msgpack_decoder
from poise.drivers import meetings
from poise.drivers.security import same_token
from poise.drivers.series import Series
from poise.drivers.shipping import keep
from poise.drivers.vault import Vault
from poise.engine.host import Answer
from poise.errors import Busy, Denied, ErrorRecord, Forbidden, InputError, NotFound, PoiseError, SpecError
from poise.kernel import messages
from poise.kernel.controller.membership import OF_THE_HOME
from poise.kernel.dispatch import not_served
from poise.kernel.frames import Broken, Frames
from poise.kernel.owners import check_enter
from poise.model.calls import ATTEMPT, FromCaller, FromWorker, Over, Ready, Resume, ToCaller, ToWorker
from poise.model.messages import (
    Attempt,
    Beat,
    Desired,
    FromAgent,
    FromConsole,
    Hello,
    Kept,
    Launch,
    Met,
    Output,
    ToNode,
)
from poise.model.resources import SUBSTRATE, Node, check_node_name, is_larger
from poise.model.tenants import Bearer, Role
from poise.model.usage import Window
from poise.ports import NodePort
from poise.units import SECOND

MAX_UNANSWERED = 4096
"""Submissions of one stream that may wait for the log; beyond this, reading pauses."""

MAX_UNSENT, MAX_UNSENT_BYTES = 100_000, 256 * 2**20
"""Limits on the frames that wait for one agent: their number and bytes. Beyond, the channel closes."""

LINES_AT_ONCE = 32
"""Lines of a stream processed before the loop serves other connections: about 5 ms."""

_log = logging.getLogger("poise.control")
_from_agent: msgspec.msgpack.Decoder[tuple[int, FromAgent | Output | Met | FromConsole]] = msgpack_decoder(
    tuple[int, FromAgent | Output | Met | FromConsole]
)
_beat: msgspec.msgpack.Decoder[tuple[int, Beat]] = msgpack_decoder(tuple[int, Beat])
_from_caller: msgspec.msgpack.Decoder[FromCaller] = msgpack_decoder(FromCaller)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgpack_decoder(FromWorker)
_encode = msgspec.msgpack.Encoder().encode


Word = Annotated[str, msgspec.Meta(max_length=128)]
Shown = Annotated[str, msgspec.Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$(?!\n)")]
"""A word that is printed unescaped in terminals and commands, so it must not contain control characters."""


class Submission(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job to run. `spec` is the content of a job file; `key` makes a repeated submission harmless."""

    spec: dict[str, Any]
    key: Word = ""
    user: Shown = ""


class Accepted(msgspec.Struct, omit_defaults=True):
    """The answer to one line of a stream: the job's id and a remark on it, or the error. If the job serves calls, its
    caller authenticates with `caller_key`.
    """

    job: str = ""
    note: str = ""
    caller_key: str = ""
    error: ErrorRecord | None = None


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that the decoder raises for a body that is not JSON."""


class Joined(Protocol):
    """Call it when a node has sent its first message (`spoke`) or left without one; later calls do nothing."""

    def __call__(self, *, spoke: bool) -> None: ...


Done = Callable[[Accepted], None]
KeyOf = Callable[[str], str]
"""Returns the caller key of a job by its id; empty if the job serves no calls."""

_submission = json_decoder(Submission)
_accepted = msgspec.json.Encoder()


async def submit(
    plane: Plane,
    targets: Targets,
    chances: Chances,
    vault: Vault,
    bearer: Bearer,
    key_of: "KeyOf",
    files: Storehouse,
    line: bytes,
    done: "Done",
) -> None:
    """Compile one submission and post it. Raises PoiseError if it does not compile, or has a strict deadline that it
    would probably miss. Waits only for strict deadlines, large submissions and those with files.
    """
    try:
        submission = _submission.decode(line)
    except UNREADABLE as error:
        raise not_json(error) from None
    spec = vault.sealed(submission.spec, bearer.tenant)
    compiled = targets.admit(await plane.prepare(spec, bearer.tenant, len(line)), bearer)
    if compiled.tree is not None:
        plane.controller.jobs.check(compiled, submission.key, submission.user)
        await files.admit(compiled, bearer.account)
    if compiled.strict:
        await chances.check(compiled, submission.key, submission.user)
    answer = _answering(done, compiled.note, key_of)
    plane.ask(
        lambda request: messages.Submit(request, compiled, submission.key, submission.user, bearer=bearer), answer
    )


class Submissions:
    """Serve one `POST` of many lines. Answers stream back while lines still arrive, as long as the token is valid."""

    def __init__(
        self,
        plane: Plane,
        targets: Targets,
        gate: Gatekeeper,
        chances: Chances,
        vault: Vault,
        key_of: KeyOf,
        files: Storehouse,
    ) -> None:
        self._plane = plane
        self._targets = targets
        self._gate = gate
        self._chances = chances
        self._vault = vault
        self._key_of = key_of
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bearer: Bearer = scope["bearer"]
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/x-ndjson")]}
        )
        stream = _Stream()
        writer = asyncio.create_task(stream.write(send))
        try:
            rest = b""
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect" or not self._gate.stands(bearer):
                    break
                lines = (rest + message.get("body", b"")).split(b"\n")
                rest = lines.pop()
                more = message.get("more_body", False)
                if not more and rest:
                    lines.append(rest)
                await self._take(bearer, lines, stream)
                if len(rest) > MAX_BODY:
                    stream.expect()(Accepted(error=_too_long().record))
                    break
                await stream.room()
        finally:
            stream.close()
            await writer

    async def _take(self, bearer: Bearer, lines: list[bytes], stream: "_Stream") -> None:
        for number, line in enumerate(lines, start=1):
            if number % LINES_AT_ONCE == 0:
                await self._plane.give_way()
            if not line.strip():
                continue
            done = stream.expect()
            try:
                accepting = (self._plane, self._targets, self._chances, self._vault, bearer, self._key_of, self._files)
                await submit(*accepting, line, done)
            except PoiseError as error:
                done(Accepted(error=error.record))


class _Stream:
    """Answers in the order of their submissions, written in batches as they become durable."""

    def __init__(self) -> None:
        self._slots: deque[list[Accepted]] = deque()
        self._news = asyncio.Event()
        self._space = asyncio.Event()
        self._closed = False

    def expect(self) -> Done:
        slot: list[Accepted] = []
        self._slots.append(slot)

        def done(answer: Accepted) -> None:
            slot.append(answer)
            self._news.set()

        return done

    async def room(self) -> None:
        while len(self._slots) > MAX_UNANSWERED:
            self._space.clear()
            await self._space.wait()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    async def write(self, send: Send) -> None:
        while not (self._closed and not self._slots):
            await self._news.wait()
            self._news.clear()
            ready = []
            while self._slots and self._slots[0]:
                ready.append(_accepted.encode(self._slots.popleft()[0]))
            self._space.set()
            if ready:
                await send({"type": "http.response.body", "body": b"\n".join(ready) + b"\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


SayNow = Callable[[bytes], bool]
"""Sends a frame at once if there is room for it; returns whether it did."""


def at_once(scope: Scope) -> SayNow:
    """Return the function of the connection that sends at once, or `never` if it has none."""
    say_now: SayNow = scope.get("extensions", {}).get(SAY_NOW, never)
    return say_now


def never(_: bytes) -> bool:
    return False


def hear_now(scope: Scope, take: Callable[[bytes], bool]) -> None:
    """Let the connection offer messages to `take` as it reads them, if it can."""
    if (hear := scope.get("extensions", {}).get(HEAR_NOW)) is not None:
        hear(take)


class NodeChannel:
    """One agent's WebSocket. Its hello names the node, then numbered frames go both ways while the token is valid."""

    def __init__(
        self,
        plane: Plane,
        gate: Gatekeeper,
        series: Series,
        home: Home,
        vault: Vault,
        key_of: Callable[[Attempt], str],
        consoles: Consoles,
        minutes: Minutes,
        anomalies: Anomalies,
        substrates: Collection[str],
    ) -> None:
        """`key_of` returns the key of an attempt that serves calls; nodes of other homes cannot compute it. The
        `substrates` of the home are also the names of the tokens of their nodes.
        """
        self._plane = plane
        self._port: NodePort = plane
        self._gate = gate
        self._series = series
        self._home = home
        self._vault = vault
        self._key_of = key_of
        self._consoles = consoles
        self._minutes = minutes
        self._anomalies = anomalies
        self._substrates = substrates
        self._admission = Admission()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        if wait := self._admission.ask(self._plane.clock.now()):
            await self._turn_away(scope, send, wait)
            return
        joining = True

        def joined(*, spoke: bool) -> None:
            nonlocal joining
            if joining:
                joining = False
                self._admission.done(self._plane.clock.now(), spoke=spoke)

        try:
            await send({"type": "websocket.accept"})
            await self._converse(scope, receive, send, joined)
        finally:
            joined(spoke=False)

    async def _turn_away(self, scope: Scope, send: Send, wait: int) -> None:
        """Refuse a node, until it may come back."""
        self._plane.crowded(wait)
        seconds = -(-wait // SECOND)
        error = Busy("too many nodes connect at once", need=f"another try after {seconds} s", hint="the agent waits")
        await refuse(scope, send, error, retry_after=seconds)

    async def _converse(self, scope: Scope, receive: Receive, send: Send, joined: Joined) -> None:
        number = self._port.accepted()
        frames = Frames()
        bearer: Bearer = scope["bearer"]
        by = bearer.token or OF_THE_HOME
        key_of = self._key_of if bearer.role is Role.NODE else None
        channel = Channel(send, frames, key_of, lambda: self._gate.stands(bearer), self._opened, now=at_once(scope))
        node = ""

        def take(frame: bytes) -> bool:
            """Take a heartbeat without windows: most messages of thousands of nodes are such. The task gets the others,
            and all that are wrong.
            """
            if not node or channel.closed or not self._plane.keeps_pace() or not self._gate.stands(bearer):
                return False
            try:
                serial, beat = _beat.decode(frame)
                if beat.windows:
                    return False
                if frames.hears(serial):
                    self._port.hear(node, channel, beat, by)
            except (*UNREADABLE, Broken):
                return False
            return True

        hear_now(scope, take)
        try:
            while True:
                event = await receive()
                if event["type"] == "websocket.disconnect" or channel.closed or not self._gate.stands(bearer):
                    return
                serial, message = _from_agent.decode(event.get("bytes") or b"")
                if not frames.hears(serial):
                    continue
                if isinstance(message, Output):
                    if node:
                        await self._take_output(node, channel, message)
                    continue
                if isinstance(message, Met):
                    if node:
                        self._pass_on(node, channel, message)
                    continue
                if isinstance(message, FromConsole):
                    if node:
                        self._consoles.hear(node, message)
                    continue
                if isinstance(message, Hello):
                    message = self._labelled(message, by)
                    check_node_name(message.node.name, "name")
                    if not self._port.connect(message.node, number, channel, by):
                        return
                    node = message.node.name
                    self._compare(message.node)
                if node:
                    self._port.hear(node, channel, message, by)
                    joined(spoke=True)
                    if isinstance(message, Beat) and message.windows:
                        self._keep(node, message.windows)
                    await self._plane.keep_pace()
        except (*UNREADABLE, Broken) as error:
            _log.warning("node %s sent what is no message: %s", node or "(unnamed)", error)
        except InputError as error:
            self._gate.refused(error, scope["path"], bearer)
            await hang_up(send, error)
        finally:
            channel.close()
            if node:
                self._consoles.gone(node)
                self._port.disconnect(node, channel)

    def _labelled(self, hello: Hello, by: str) -> Hello:
        """Label a node of a cluster with the substrate: its token has that name."""
        token = self._plane.ledger.tokens.get(by)
        if token is None or token.role is not Role.NODE or token.name not in self._substrates:
            return hello
        node = msgspec.structs.replace(hello.node, labels=hello.node.labels | {SUBSTRATE: token.name})
        return msgspec.structs.replace(hello, node=node)

    def _opened(self, desired: Desired) -> Desired:
        """Return the desired state with the secrets of its launches decrypted. A launch whose secrets cannot be
        decrypted is not sent, and the controller is told.
        """
        if not any(launch.secrets for launch in desired.launches):
            return desired
        launches = []
        for launch in desired.launches:
            try:
                launches.append(self._unlocked(launch))
            except PoiseError as error:
                self._plane.post(messages.Locked(launch.attempt, f"{error}: {error.record.hint}"))
        return msgspec.structs.replace(desired, launches=tuple(launches))

    def _unlocked(self, launch: Launch) -> Launch:
        job = self._plane.ledger.jobs[launch.attempt.task.partition(".")[0]]
        values = {name: self._vault.open(job.tenant, name, text) for name, text in launch.secrets.items()}
        return msgspec.structs.replace(launch, env=launch.env | values, secrets={})

    def _compare(self, node: Node) -> None:
        """Warn if a node reconnects with more resources than before: the control plane cannot verify the claim."""
        known = self._plane.ledger.nodes.get(node.name)
        if known is None or not is_larger(node, known.node):
            return
        was = known.node
        _log.warning(
            "node %s says that it has grown: from %g CPU, %.1f GiB and %d devices to %g CPU, %.1f GiB and %d devices; "
            "if it has not: `poise drain %s`, and `poise token rm` of the token by which it comes",
            node.name,
            *(was.cpu / 1000, was.memory / 2**30, len(was.devices)),
            *(node.cpu / 1000, node.memory / 2**30, len(node.devices)),
            node.name,
        )

    async def _take_output(self, node: str, channel: "Channel", output: Output) -> None:
        """Keep output of an attempt that was placed on this node. A full disk loses the output and nothing else. Output
        of an unknown or forgotten attempt is acknowledged, so that its node does not wait.
        """
        if self._plane.ledger.jobs.node_of(output.attempt) != node:
            channel.send(Kept(attempt=output.attempt, err=output.err, until=output.start + len(output.data)))
            return
        try:
            channel.send(await asyncio.to_thread(keep, self._home.logs, output))
        except OSError as error:
            _log.debug("what %s wrote is not kept: %s", output.attempt, error)

    def _pass_on(self, node: str, channel: "Channel", met: Met) -> None:
        """Send a message to the gang's other nodes. A node that asks (no name) gets all messages kept so far."""
        unit = self._plane.ledger.jobs.unit(met.gang)
        if unit is None or node not in {task.node for task in unit.tasks}:
            return
        folder = self._home.meetings / unit.job
        if not met.name:
            for known in meetings.kept(folder, met):
                channel.send(known)
            return
        try:
            meetings.keep(folder, met)
        except OSError as error:
            _log.debug("what %s left for others is not kept: %s", met.gang, error)
        for other in sorted({task.node for task in unit.tasks} - {node, ""}):
            self._plane.tell(other, met)

    def _keep(self, node: str, windows: Sequence[Window]) -> None:
        """Keep a node's usage windows with its failure count. A full disk loses the windows and nothing else."""
        state = self._plane.ledger.nodes.get(node)
        if state is None:
            return
        cores, devices = state.node.cpu / 1000, len(state.node.devices)
        held = Held(cores, devices, state.used_cpu / 1000, len(state.devices.keys() | state.shares.keys()))
        self._minutes.take(node, windows, held)
        self._anomalies.take(node, windows)
        try:
            self._series.add(node, [window.with_signal("failures", state.failures) for window in windows])
        except OSError as error:
            _log.debug("how busy %s was is not kept: %s", node, error)


class CallerChannel:
    """The WebSocket of one caller. Its first frame names a job of its tenant and shows the caller key that the
    submitter of the job got. Then calls come in and results go out while the token is valid.
    """

    def __init__(self, plane: Plane, gate: Gatekeeper, key_of: KeyOf) -> None:
        self._plane = plane
        self._gate = gate
        self._key_of = key_of
        self._turns = Turns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bearer: Bearer = scope["bearer"]
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        channel = Channel(send, stands=lambda: self._gate.stands(bearer), now=at_once(scope))
        job = ""
        try:
            while True:
                event = await receive()
                if event["type"] == "websocket.disconnect":
                    return
                async with self._turns.of(bearer.tenant):
                    if channel.closed or not self._gate.stands(bearer):
                        return
                    message = _from_caller.decode(event.get("bytes") or b"")
                    if job and not isinstance(message, Resume):
                        self._plane.hear_caller(job, bearer.tenant, channel, message)
                if isinstance(message, Resume):
                    if job:
                        return
                    await self._connect(message, bearer, channel)  # waits for the log: outside of the turn
                    job = message.job
                    async with self._turns.of(bearer.tenant):
                        self._plane.hear_caller(job, bearer.tenant, channel, message)
        except UNREADABLE as error:
            _log.warning("the caller of %s sent what is no message: %s", job or "(unnamed)", error)
        except (NotFound, Forbidden) as error:
            self._gate.refused(error, scope["path"], bearer)
            await send({"type": "websocket.send", "bytes": _encode(Over(f"a call was refused: {error}"))})
        finally:
            channel.close()
            if job:
                self._plane.disconnect_caller(job, channel)

    async def _connect(self, resume: Resume, bearer: Bearer, channel: "Channel") -> None:
        """Connect the caller. Raises `NotFound` unless its key matches the job that it names, and `Forbidden` unless it
        may run code as the account of the job.
        """
        ledger = await self._plane.settled()  # a full disk may still take back what is not durable
        job = ledger.jobs.get(resume.job)
        if job is None or not same_token(resume.key, self._key_of(resume.job)):
            raise not_served(resume.job)
        check_enter(ledger, job.account, bearer)
        self._plane.connect_caller(resume.job, bearer.tenant, channel)


class WorkerChannel:
    """The WebSocket of one worker of calls. `key_of` returns the key of the worker's attempt; the worker must show that
    key before any of its messages is read.
    """

    def __init__(self, plane: Plane, gate: Gatekeeper, key_of: Callable[[Attempt], str]) -> None:
        self._plane = plane
        self._gate = gate
        self._key_of = key_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = text_headers(scope)
        attempt = attempt_named(headers)
        if attempt is None or not same_token(secret_of(headers), self._key_of(attempt)):
            error = Denied("this is not the key of the attempt", field=ATTEMPT, have=str(attempt or "none")[:80])
            self._gate.refused(error, scope["path"])
            await refuse(scope, send, error)
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        channel = Channel(send, now=at_once(scope))
        ready = False
        try:
            while True:
                event = await receive()
                if event["type"] == "websocket.disconnect" or channel.closed:
                    return
                message = _from_worker.decode(event.get("bytes") or b"")
                if isinstance(message, Ready) and not ready:
                    if message.attempt != attempt:
                        return
                    ready = True
                    self._plane.connect_worker(attempt, channel)
                if ready:
                    self._plane.hear_worker(attempt, channel, message)
        except UNREADABLE as error:
            _log.warning("worker %s sent what is no message: %s", attempt, error)
        finally:
            channel.close()
            if ready:
                self._plane.disconnect_worker(attempt, channel)


def attempt_named(headers: Mapping[str, str]) -> Attempt | None:
    """Return the attempt that a worker claims to be; None if the header is missing or invalid."""
    task, _, epoch = headers.get(ATTEMPT.lower(), "").rpartition("#")
    return Attempt(task, int(epoch)) if epoch.isdecimal() and len(epoch) < 20 else None


class Channel:
    """Sends messages in order without ever blocking the plane: a frame that cannot be sent `now` is sent by a task.
    With `frames`, messages are numbered; with `key_of`, launches get a key; `opened` decrypts their secrets. Nothing
    more is sent once `stands` says that the token is invalid.
    """

    def __init__(
        self,
        send: Send,
        frames: Frames | None = None,
        key_of: Callable[[Attempt], str] | None = None,
        stands: Callable[[], bool] = lambda: True,
        opened: Callable[[Desired], Desired] = lambda desired: desired,
        now: SayNow = never,
    ) -> None:
        self._send = send
        self._now = now
        self._frames = frames
        self._key_of = key_of
        self._stands = stands
        self._opened = opened
        self._queue: deque[bytes] = deque()
        self._waiting = 0
        self.closed = False
        self._writing: asyncio.Task[None] | None = None

    def send(self, message: ToNode | ToCaller | ToWorker) -> None:
        """Send a message. Disconnect a peer with too much unread; on reconnection it gets the full state again."""
        if len(self._queue) >= MAX_UNSENT or self._waiting >= MAX_UNSENT_BYTES:
            self.close()
        if self.closed:
            return
        if isinstance(message, Desired):
            message = self._opened(message)
            if self._key_of is not None:
                message = _with_keys(message, self._key_of)
        frame = _encode(message if self._frames is None else (self._frames.number(), message))
        if self._writing is None and self._stands() and self._now(frame):
            return
        self._queue.append(frame)
        self._waiting += len(frame)
        self._write_on()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._queue.clear()
            self._write_on()

    def _write_on(self) -> None:
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Send the queued frames, and the close frame if the channel is closed."""
        try:
            while self._queue:
                if not self._stands():
                    self.close()
                    break
                frame = self._queue.popleft()
                self._waiting -= len(frame)
                await self._send({"type": "websocket.send", "bytes": frame})
            if self.closed:
                await self._send({"type": "websocket.close", "code": 1012})
            else:
                self._writing = None
        except Exception as error:  # the connection is lost; the reading side ends it
            _log.debug("channel closed: %s", error)


def _with_keys(desired: Desired, key_of: Callable[[Attempt], str]) -> Desired:
    if not any(launch.serves or launch.tree for launch in desired.launches):
        return desired
    replace = msgspec.structs.replace
    launches = (replace(of, key=key_of(of.attempt)) if of.serves or of.tree else of for of in desired.launches)
    return replace(desired, launches=tuple(launches))


def _answering(done: Done, note: str, key_of: KeyOf) -> Answer:
    def answer(reply: messages.Reply) -> None:
        if reply.error is not None:
            done(Accepted(error=reply.error.record))
        else:
            done(Accepted(job=reply.value, note=note, caller_key=key_of(reply.value)))

    return answer


def not_json(error: Exception) -> PoiseError:
    return SpecError(
        "this is not a submission", code="E101", have=str(error), hint='{"spec": {"run": ["echo", "hello"]}}'
    )


def _too_long() -> PoiseError:
    return InputError(
        "a line is too long", code="E140", need=f"at most {MAX_BODY} bytes", hint="one submission per line"
    )
