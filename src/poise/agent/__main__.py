"""`python -m poise.agent`: the agent of one node.

It adopts the attempts of its keepers, connects to the control plane's API, reports the state of the node, and carries
out assignments. While the control plane is unreachable, it continues its work and retries. If the agent is killed, its
keepers continue.

With `--declared` it offers the node that a fleet file describes instead of the real machine. Its commands run on the
real hardware: declared cores are not bound, and declared devices are not measured.

With `--connect` it connects to the control plane of another home, on this machine or another one, with the token of a
node, and sends the output of its commands there.

With `--dismiss` it only stops the keepers of a killed agent, except those whose commands still run.

With `--retire` it stops the remaining work of a node of an earlier fleet, removes the node's folder, and exits.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # until `settle_memory`: imports live long, and scanning them takes a fifth of the start


import argparse
import asyncio
import contextlib
import faulthandler
import itertools
import logging
import os
import random
import signal
import socket
import ssl
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from poise.agent.fetching import Fetching
from poise.agent.sessions import Sessions
from poise.agent.tidying import remove_gone, remove_of
from poise.agent.upkeep import Toll
from poise.config import Address, Door, Endpoint, Home
from poise.decoding import json_decoder, msgpack_decoder
from poise.drivers.accounts import Accounts, Places, offered
from poise.drivers.devices import Inventory, Part, identity, incarnation_of
from poise.drivers.following import NOT_PLANNED, planned
from poise.drivers.getting import Giving
from poise.drivers.kernellog import KernelLog
from poise.drivers.lock import take_lock
from poise.drivers.logs import keep_pruned
from poise.drivers.meetings import Meetings
from poise.drivers.probes import Use
from poise.drivers.process import Keepers
from poise.drivers.reach import door_of, home_at, home_elsewhere, reach, trusting
from poise.drivers.security import ensure_home, ensure_token, read_token, token_for, worker_key
from poise.drivers.shipping import Shipping
from poise.drivers.sockets import LOOK_SECONDS, made
from poise.drivers.system import (
    HostMeter,
    PowerMeter,
    ProcessMeter,
    SystemClock,
    boot_id,
    cpu_used,
    probe_cgroups,
    settle_memory,
)
from poise.drivers.tellings import plan_path
from poise.drivers.tidy import remove_folder, remove_folders
from poise.errors import ErrorRecord, NotFound, NotLeading, PoiseError
from poise.kernel import node as machine
from poise.kernel.frames import Broken, Frames
from poise.kernel.node import NodeMachine
from poise.model.load import Load, Pace
from poise.model.messages import (
    Attempt,
    Desired,
    Ended,
    Fetch,
    FromAgent,
    FromConsole,
    Kept,
    Launch,
    Met,
    Output,
    Running,
    ToConsole,
    ToNode,
)
from poise.model.resources import WHOLE, Node, check_node_name
from poise.model.times import Times
from poise.model.usage import UNKNOWN, Collecting
from poise.ports import Held, carry_out
from poise.units import SECOND

RECONNECT_SECONDS = (0.05, 0.25, 1.0)
"""Reconnect delays: the first, the longest on one machine, and the longest to another machine."""

BUSY_SECONDS = 8.0, 60.0
"""Longest time that an agent waits for a channel: with several control planes, and with one. A control plane that does
not answer in time may have thousands of others to answer, so the timeout doubles on the next try: an agent that gives
up and reconnects adds to its load.
"""

LONGEST_WAIT = 60.0
"""Longest delay in seconds that a control plane may request with `Retry-After`."""

DIAL_SECONDS, SILENCE_SECONDS = 10.0, 2.0
"""Timeouts for an answer: with one control plane, and with several. If a silent one is not the leader, another may
be."""

TRY_SECONDS = 1.0, 64.0
"""Retry delays of a node that cannot start commands: the first and the longest. Each is twice the last."""

MAX_DECLARED = 2**16
"""Devices of a declared node have lower indices. They exist for as long as work holds them."""

STILL_RUNS = 5
"""Exit code of an agent that was stopped while commands of its node still run."""

DEFLATE = {"level": 1, "memLevel": 5}
"""Compression of frames between machines, in one stream per connection. It is set for speed, since the same thread
sends the heartbeats.
"""

FIRST_REFUSAL = 4400
"""A close code from this number on means that the channel was refused; the close reason says why."""

TIDY_SECONDS = 600.0
"""Interval between checks for files of removed jobs."""

SHIP_SECONDS = 0.05
UNTOLD_SECONDS = 0.05
LEAVE_SECONDS = 3
"""Time for a node on which nothing runs to say that it leaves."""

MAX_SHIPPED = 16
"""Longest send queue of output and gang files: heartbeats queue behind them."""

_log = logging.getLogger("poise.agent")
_to_agent: msgspec.msgpack.Decoder[tuple[int, ToNode]] = msgpack_decoder(tuple[int, ToNode])
_encode = msgspec.msgpack.Encoder().encode
_refused = json_decoder(dict[str, ErrorRecord])


def host_signals(load: Load, without: str = "") -> dict[str, int]:
    """Return the signals of a machine, without the signal `without`."""
    of = {"cpu": load.cpu, "memory": load.memory, "disk": load.disk, "network": load.network}
    return {name: value for name, value in of.items() if name != without}


def device_signals(seen: Mapping[int, Use], memory: Mapping[int, int]) -> dict[str, int]:
    """Return, over all devices that answer, the mean utilization, the fraction of memory in use, and the total power.
    `memory` is the size of each device's memory in bytes.
    """
    if not seen:
        return {}
    has = sum(memory.get(index, 0) for index in seen)
    bandwidths = [use.bandwidth for use in seen.values() if use.bandwidth != UNKNOWN]
    powers = [use.power for use in seen.values() if use.power != UNKNOWN]
    return {"device": sum(use.busy for use in seen.values()) // len(seen)} | _known(
        device_memory=1000 * sum(use.memory for use in seen.values()) // has if has else None,
        device_bandwidth=sum(bandwidths) // len(bandwidths) if bandwidths else None,
        device_power=sum(powers) if powers else None,
    )


def _known(**signals: int | None) -> dict[str, int]:
    return {name: value for name, value in signals.items() if value is not None}


def lack(error: Exception, door: Door) -> str:
    """Return why there is no channel if a person may have to fix it, or "" if a retry is enough."""
    if isinstance(error, msgspec.DecodeError):
        return f"what the control plane says is not understood, which may be of another version: {error}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {door} does not hold here: {error.verify_message}; `date`, on both machines"
    if isinstance(error, OSError) and isinstance(door, Address):
        return f"no control plane answers at {door}: {error}"
    record = error.record if isinstance(error, PoiseError) else None
    if isinstance(error, InvalidStatus):
        with contextlib.suppress(msgspec.DecodeError, KeyError):
            record = _refused.decode(error.response.body or b"")["error"]
    said = ""
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code >= FIRST_REFUSAL:
        said = error.rcvd.reason
    elif record is not None and record.code != NotLeading.default_code:  # otherwise another one leads
        said = "; ".join(part for part in (f"{record.code}: {record.message}", record.have, record.hint) if part)
    return f"this node is refused: {said}" if said else ""


def patience_after(error: Exception, patience: float, shortest: float, most: float) -> float:
    """Return the timeout in seconds for the next control plane, after `error` of one whose timeout was `patience`."""
    return min(most, 2 * patience) if isinstance(error, TimeoutError) else shortest


def retry_after(error: Exception) -> float:
    """Return the delay in seconds that an overloaded control plane requests, or 0."""
    text = error.response.headers.get("Retry-After", "") if isinstance(error, InvalidStatus) else ""
    return min(float(text), LONGEST_WAIT) if text.isdecimal() else 0.0


class DeviceUse(msgspec.Struct):
    """Device use by one attempt: sum and number of samples, and the peak memory on one device."""

    devices: tuple[int, ...]
    busy: int = 0
    samples: int = 0
    peak: int = 0


class Agent:
    """The event loop of one node: it carries out the node machine's effects on its keepers and its channel."""

    def __init__(self, home: Home, keepers: Keepers, node: NodeMachine, offer: "Offer") -> None:
        self._home = home
        self._keepers = keepers
        self._node = node
        self._clock = SystemClock.of_the_boot()
        self._times = Times()
        self._unsent: deque[FromAgent | Output | Met | FromConsole] = deque()
        self._news = asyncio.Event()
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0
        self._running: dict[Attempt, int] = {}
        self._cpu_of_ended = 0
        self._uses: dict[Attempt, DeviceUse] = {}
        self._inventory = offer.inventory
        self._sample = self._meter(offer)
        self._collecting = Collecting()
        self._door: Door = home.socket  # of the connected control plane
        self._pace = Pace(self._times.sample, self._times.sample_calm)
        self._stirred = asyncio.Event()
        self._toll = Toll()
        self._shipping = Shipping(home.logs) if home.doors != (home.socket,) else None
        self._meetings = Meetings(home.gangs)
        self._giving = Giving(home, self._on_console, keepers.accounts)
        self._sessions = Sessions(keepers, self._device_use)
        self._fetching = Fetching(keepers.podman, keepers.registries)
        self._held_back: list[Ended] = []
        self._written = asyncio.Event()
        self._answered = False
        self._told_lack = ""
        self._unfit = asyncio.Event()
        keepers.on_change = self._on_change
        keepers.on_fitness = self._on_fitness
        keepers.on_sized = self._feed
        keepers.on_console = self._on_console

    def end_at(self, moment: float) -> None:
        """Set when the node's allocation ends, in seconds since 1970."""
        self._node.until = self._clock.now() + round((moment - self._clock.wall()) * SECOND)

    async def leave(self, why: str) -> None:
        """Stop all commands, and return when the control plane knows that this node leaves, and how each command ended.
        If it does not answer, wait only while there are commands to report.
        """
        self._feed(machine.Leaving(why))
        until = self._clock.now() + LEAVE_SECONDS * SECOND
        while self._node.untold() or not (self._node.has_said_all() or self._clock.now() > until):  # noqa: ASYNC110
            await asyncio.sleep(UNTOLD_SECONDS)

    def adopt(self, held: Iterable[Held], ended: Iterable[Ended]) -> None:
        """Measure the work that an earlier agent's keepers hold."""
        for one in held:
            self._measure_devices_of(one.launch)
            self._meet(one.launch)
            if one.running is not None:
                self._running[one.running.attempt] = one.running.pid
                if self._shipping is not None:
                    self._shipping.began(one.running.attempt)
        for done in ended:
            self._meetings.found(done.attempt)
            if self._shipping is not None:
                self._shipping.ended(done.attempt)

    async def run(self) -> None:
        """Connect and reconnect for ever."""
        pause = RECONNECT_SECONDS[0]
        turns = itertools.count()
        shortest, most = (SILENCE_SECONDS, BUSY_SECONDS[0]) if self._home.others else (DIAL_SECONDS, BUSY_SECONDS[1])
        patience = shortest
        longest = RECONNECT_SECONDS[any(isinstance(door, Address) for door in self._home.doors) + 1]
        while True:
            turn, self._answered, turned_away = next(turns), False, 0.0
            listening = made(self._home.socket)
            try:
                async with self._dial(turn, patience) as channel:
                    await self._session(channel)
            except (OSError, WebSocketException, PoiseError, EOFError, Broken, msgspec.DecodeError) as error:
                self._tell_lack(lack(error, door_of(self._home, turn)))
                turned_away = retry_after(error)
                patience = patience_after(error, patience, shortest, most)
                _log.debug("no channel: %s", error)
            finally:
                self._sock = None
                self._feed(machine.Disconnected())
                self._keepers.leave_all()
                self._giving.leave_all()
                self._unsent.clear()
                # A connection is a reference cycle, with 50 KiB of compression state to another machine: a collector
                # with a threshold of 50,000 objects would keep thousands. Long-lived objects are frozen, so this takes
                # 1 ms.
                gc.collect()
            if self._answered:
                pause, patience = RECONNECT_SECONDS[0], shortest
            if turned_away:
                await asyncio.sleep(turned_away + random.random())  # noqa: S311 — whole seconds
            else:
                await self._pause(pause, listening)
            pause = min(longest, pause * 2)

    async def _pause(self, seconds: float, listening: tuple[int, int] | None) -> None:
        """Wait for `seconds`; return early if a new control plane starts to listen on this machine."""
        if self._home.socket not in self._home.doors:
            await asyncio.sleep(seconds)
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while made(self._home.socket) == listening and (left := until - loop.time()) > 0:  # noqa: ASYNC110 — no event
            await asyncio.sleep(min(LOOK_SECONDS, left))

    def _tell_lack(self, why: str) -> None:
        """Log a reason once, however often the connection is retried."""
        if why and why != self._told_lack:
            self._told_lack = why
            _log.warning("%s", why)

    @contextlib.asynccontextmanager
    async def _dial(self, turn: int, patience: float) -> AsyncIterator[ClientConnection]:
        """Open a channel to the control plane; with several, try them in turn."""
        token = token_for(self._home) if self._home.elsewhere is not None else read_token(self._home)
        door, scheme, secured = door_of(self._home, turn), "ws", dict[str, Any]()
        if isinstance(door, Address):
            scheme, secured = "wss", {"ssl": await asyncio.to_thread(trusting, door), "server_hostname": door.host}
            secured["extensions"] = [
                ClientPerMessageDeflateFactory(
                    server_max_window_bits=12, client_max_window_bits=12, compress_settings=DEFLATE
                )
            ]
            sock = await asyncio.to_thread(socket.create_connection, (door.host, door.port), patience)
        else:
            sock = reach(self._home, turn=turn)
        with contextlib.closing(sock):
            sock.setblocking(False)
            async with connect(
                f"{scheme}://poise/v1/channel",
                sock=sock,
                additional_headers={"Authorization": f"Bearer {token}"},
                open_timeout=patience,
                compression=None,
                max_size=None,
                ping_interval=None,
                create_connection=self._toll.connection,
                **secured,
            ) as channel:
                self._sock, self._door = sock, door
                self._keepers.address = self._address()
                yield channel

    def _address(self) -> str:
        """Return this machine's address for gang members on other machines, or "" if the control plane listens locally
        only."""
        if isinstance(self._door, Address) and self._sock is not None:
            name: str = self._sock.getsockname()[0]
            return name
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if text := json_decoder(Endpoint).decode(self._home.endpoint.read_bytes()).address:
                return Address.parse(text).host
        return ""

    async def _session(self, channel: ClientConnection) -> None:
        self._unsent.clear()
        if self._shipping is not None:
            self._shipping.connected("" if self._door == self._home.socket else str(self._door))
        self._feed(machine.Connected(self._keepers.address))
        self._unsent.extend(self._meetings.connected())
        self._written.set()
        frames = Frames()
        sender = asyncio.create_task(self._send(channel, frames))
        try:
            async for frame in channel:
                serial, message = _to_agent.decode(frame if isinstance(frame, bytes) else frame.encode())
                if not frames.hears(serial):
                    continue
                if not self._answered:
                    _log.info("connected to %s", self._door)  # `poise join` waits for it
                self._answered, self._told_lack = True, ""
                if isinstance(message, ToConsole):
                    if not self._giving.takes(message):
                        self._keepers.console(message)
                elif isinstance(message, Met):
                    self._meetings.take(message)
                elif isinstance(message, Fetch):
                    self._fetching.take(message)
                elif not isinstance(message, Kept):
                    if isinstance(message, Desired) and message.removed:
                        await asyncio.to_thread(remove_folders, (self._home.logs,), message.removed)
                        await asyncio.to_thread(remove_of, self._home, self._keepers.accounts, message.removed)
                    self._feed(message)
                elif self._shipping is not None:
                    self._shipping.kept(message)
        finally:
            sender.cancel()

    async def _send(self, channel: ClientConnection, frames: Frames) -> None:
        """Send queued messages."""
        try:
            while True:
                while self._unsent:
                    await channel.send(_encode((frames.number(), self._unsent.popleft())))
                self._news.clear()
                await self._news.wait()
        except WebSocketException:
            return  # the reading side sees the same and ends the session

    def _feed(self, message: machine.Message) -> None:
        self._perform(self._node.handle(message, self._clock.now()))

    def _tick(self) -> None:
        self._timer = None
        self._perform(self._node.tick(self._clock.now()))

    def _perform(self, effects: Iterable[machine.Effect]) -> None:
        for effect in effects:
            match effect:
                case machine.Say():
                    self._unsent.append(effect.message)
                    self._news.set()
                case machine.Hang():
                    _log.warning("nothing has been heard of the control plane; connecting anew")
                    self._hang_up()
                case _:
                    self._prepare(effect)
                    carry_out(effect, self._keepers)
        self._arm()

    def _prepare(self, effect: machine.ToExecutor) -> None:
        """Prepare this node before an effect is sent to the keepers."""
        match effect:
            case machine.Start():
                self._stir()
                self._measure_devices_of(effect.launch)
                self._meet(effect.launch)
            case machine.Pause() if not effect.on:
                self._sessions.resumed(effect.attempt)
            case machine.Forget():
                self._meetings.left(effect.attempts)

    def _arm(self) -> None:
        """Set a timer for the machine's next wakeup. Messages postpone it; a timer that is too early is kept."""
        due = self._node.wakeup()
        if due is None or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        delay = max(0.0, (due - self._clock.now()) / SECOND)
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _hang_up(self) -> None:
        """Disconnect at once, without a closing handshake."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    async def watch_devices(self, inventory: Inventory) -> None:
        """Probe devices periodically and report changes."""
        while True:
            await asyncio.sleep(self._times.reprobe / SECOND)
            found = await asyncio.to_thread(inventory.look)
            if found != self._node.node:
                _log.info("this node has changed: %s", found)
                self._node.node, self._node.withheld = found, inventory.there
                self._keepers.devices = {device.index: device for device in found.devices}
                if self._sock is not None:
                    self._feed(machine.Connected(self._keepers.address))

    async def watch_faults(self, inventory: Inventory) -> None:
        """Report failed devices at once."""
        with contextlib.closing(KernelLog()) as kernel:
            while True:
                await asyncio.sleep(self._times.sample / SECOND)
                if faults := await asyncio.to_thread(inventory.faults, kernel):
                    _log.warning("devices have failed: %s", faults)
                    self._feed(machine.Faulted(tuple(faults)))

    async def watch_training(self) -> None:
        """Forward the training reports of commands."""
        while True:
            await asyncio.sleep(self._times.sample / SECOND)
            told = await asyncio.to_thread(self._keepers.tellings.look, [*self._running]) if self._running else []
            if told or self._node.listens():
                still = [attempt for attempt in self._node.standing_still() if attempt in self._running]
                used = {attempt: cpu_used([self._running[attempt]]) for attempt in still}
                self._feed(machine.Telling(tuple(told), used))

    async def watch_sessions(self) -> None:
        """Report which sessions are idle, and end those that must end."""
        while True:
            sessions = self._node.sessions()
            if idle := await self._sessions.look(sessions, self._clock.now()):
                self._feed(machine.Used(idle))
            await asyncio.sleep(self._sessions.pause(sessions))

    def _device_use(self, attempt: Attempt) -> tuple[int, int]:
        """Return the sum and the number of the samples of an attempt's devices, while it has them alone."""
        use = self._uses.get(attempt)
        return (0, 0) if use is None else (use.busy, use.samples)

    def _on_console(self, message: FromConsole) -> None:
        """Send console output at once while connected; otherwise drop it, because it is never requested later."""
        if self._sock is not None:
            self._unsent.append(message)
            self._news.set()

    def _on_fitness(self, why: str) -> None:
        if why and not self._unfit.is_set():
            _log.error("%s", why)
        self._feed(machine.Fitness(why))
        (self._unfit.set if why else self._unfit.clear)()

    async def tidy_work(self) -> None:
        """Remove the files of attempts of unknown jobs, including jobs that were removed while this node was away."""
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            with contextlib.suppress(OSError, PoiseError):
                await asyncio.to_thread(remove_gone, self._home, self._keepers.accounts)

    async def watch_fitness(self) -> None:
        """Retry starts on an unfit node with growing pauses. If it soon becomes unfit again, keep the last pause."""
        pause, longest = TRY_SECONDS
        while True:
            since = self._clock.now()
            await self._unfit.wait()
            if self._clock.now() - since > longest * SECOND:
                pause = TRY_SECONDS[0]
            while self._unfit.is_set():
                await asyncio.sleep(pause)
                pause = min(longest, 2 * pause)
                self._keepers.try_out()

    async def deliver(self) -> None:
        """Send the output of commands, and the files that gang members leave for other machines. An ending is reported
        after all earlier output and files.
        """
        while True:
            ended, self._held_back = self._held_back, []
            for message in self._news_of_commands() if self._sock is not None else ():
                self._unsent.append(message)
                self._news.set()
                await self._sent()
            if ended:
                self._feed(machine.Changed((), tuple(ended)))
            self._written.clear()
            if not self._held_back:
                shipping = self._shipping is not None and self._shipping.follows
                follows = shipping or (self._meets() and self._meetings.any)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._written.wait(), SHIP_SECONDS if follows else None)

    def _news_of_commands(self) -> Iterator[Output | Met]:
        if self._shipping is not None:
            yield from self._shipping.parts()
        if self._meets():
            yield from self._meetings.news()

    def _meets(self) -> bool:
        """Return whether gang members may be on other machines and can be reached."""
        return bool(self._keepers.address) and self._sock is not None

    async def _sent(self) -> None:
        """Wait until the send queue has room."""
        while len(self._unsent) > MAX_SHIPPED:  # noqa: ASYNC110 — another task empties or clears it
            await asyncio.sleep(SHIP_SECONDS)

    def _meet(self, launch: Launch) -> None:
        """Announce a starting gang member, since its other members may be on other machines."""
        if launch.gang:
            self._unsent.append(self._meetings.joined(launch))
            self._news.set()
            self._written.set()

    # --- measuring ---------------------------------------------------------------------------------------------------

    async def measure(self) -> None:
        """Sample this node's load and devices; the samples of a minute form a window of its profile."""
        pause = self._times.sample
        while True:
            await asyncio.sleep(self._times.sample / SECOND)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), max(0, pause - self._times.sample) / SECOND)
            self._stirred.clear()
            found = await asyncio.to_thread(self._sample)
            signals = {} if found is None else found[1]
            pause = self._times.sample
            if found is not None and found[0] is not None:
                pause = self._pace.after(found[0])
                self._feed(found[0])
            devices = self._node.node.devices if self._inventory is not None else ()
            if self._inventory is not None and devices:
                seen = await asyncio.to_thread(self._inventory.use, [device.index for device in devices])
                for use in self._uses.values():
                    for index in use.devices:
                        if index in seen:
                            use.busy, use.samples = use.busy + seen[index].busy, use.samples + 1
                            use.peak = max(use.peak, seen[index].memory)
                if self._uses or any(use.busy for use in seen.values()):
                    pause = self._times.sample  # an attempt's device use is a mean of samples, so sample often
                signals |= device_signals(seen, {device.index: device.memory for device in devices})
            if signals and (window := self._collecting.take(self._clock.wall(), signals)) is not None:
                self._feed(self._toll.take())
                self._feed(window)
            pause = min(pause, round(self._collecting.due(self._clock.wall()) * SECOND))

    def _stir(self) -> None:
        """Sample soon, because work begins or ends and changes the load."""
        self._pace.stir()
        self._stirred.set()

    def _meter(self, offer: "Offer") -> Callable[[], tuple[Load | None, dict[str, int]] | None]:
        """Return a function that samples load and signals of this machine. For a declared node, use its exporters, or
        else the use by its commands relative to the declared resources.
        """
        node = offer.node
        if offer.exporters:
            from poise.drivers.exporters import Exporters

            return Exporters(offer.exporters).sample
        if offer.inventory is not None:
            host, power = HostMeter(node.cpu, node.memory, node.network), PowerMeter()

            def of_host() -> tuple[Load, dict[str, int]] | None:
                load, milliwatts = host.sample(), power.sample()
                return None if load is None else (load, host_signals(load) | _known(power=milliwatts))

            return of_host
        meter = ProcessMeter(node.cpu, node.memory)

        def of_commands() -> tuple[Load, dict[str, int]] | None:
            load = meter.sample(list(self._running.values()), self._cpu_of_ended)
            return None if load is None else (load, host_signals(load, without="network"))

        return of_commands

    def _measure_devices_of(self, launch: Launch) -> None:
        """Measure the devices of an attempt. Shared devices are left out: their use cannot be attributed."""
        if launch.devices and launch.shape.share == WHOLE and self._inventory is not None:
            self._uses[launch.attempt] = DeviceUse(launch.devices)

    def _on_change(self, running: Sequence[Running], ended: Sequence[Ended]) -> None:
        self._stir()
        for one in running:
            self._running[one.attempt] = one.pid
        for done in ended:
            if self._running.pop(done.attempt, None) is not None and (
                told := self._keepers.tellings.look([done.attempt])
            ):
                self._feed(machine.Telling(tuple(told)))
            self._cpu_of_ended += done.ending.cpu
        last = self._keepers.tellings.last_word
        finished = [last(self._with_device_use(done)) for done in ended]
        if self._shipping is not None:
            for one in running:
                self._shipping.began(one.attempt)
            for done in finished:
                self._shipping.ended(done.attempt)
        if self._shipping is not None or (self._meets() and any(self._meetings.has(done.attempt) for done in ended)):
            self._held_back += finished
            finished = []
            self._written.set()
        self._feed(machine.Changed(tuple(running), tuple(finished)))

    def _with_device_use(self, done: Ended) -> Ended:
        use = self._uses.pop(done.attempt, None) if self._uses else None
        if use is None or not use.samples:
            return done
        ending = msgspec.structs.replace(done.ending, device=use.busy // use.samples, device_peak=use.peak)
        return msgspec.structs.replace(done, ending=ending)


class Offer(NamedTuple):
    """The resources that this node offers. All nodes of a fleet share a folder of logs, and one of them `prunes` it."""

    node: Node
    prunes: bool
    inventory: Inventory | None = None
    exporters: tuple[str, ...] = ()


def probed(name: str, home: Home, part: Part | None) -> Offer:
    """Return the offer of this machine, or of the configured part of it."""
    inventory = Inventory(name, home, part=part)
    return Offer(inventory.look(), prunes=True, inventory=inventory)


def declared_in(path: Path, name: str, folder: Path) -> Offer:
    """Return the offer of a node in a compiled fleet, with the identity in its agent's folder."""
    from poise.model.fleetfile import DeclaredFleet  # slow to import, and most machines offer what they are

    fleet = json_decoder(DeclaredFleet).decode(path.read_bytes())
    nodes = fleet.nodes
    found = next((node for node in nodes if node.name == name), None)
    if found is None:
        raise NotFound(f"the fleet has no node `{name}`", field=str(path), have=name, hint="`poise up --fleet FILE`")
    incarnation = incarnation_of(boot_id(), identity(folder))
    node = msgspec.structs.replace(found, incarnation=incarnation, accounts=offered(), grows=True)
    return Offer(node, prunes=name == nodes[0].name, exporters=fleet.exporters.get(name, ()))


async def _main(home: Home, folder: Path, options: argparse.Namespace) -> int:
    """Run the agent. Return the exit code."""
    name: str = options.name
    declared: Path | None = options.declared
    part = json_decoder(Part).decode(options.part) if options.part else None
    if declared is None:
        offer = await asyncio.to_thread(probed, name, home, part)
    else:
        offer = await asyncio.to_thread(declared_in, declared, name, folder)
    found, inventory = offer.node, offer.inventory
    cgroups = await asyncio.to_thread(probe_cgroups, found.incarnation[-12:])
    if not cgroups.writable:
        _log.info("memory is watched, not limited by cgroups: %s", cgroups.why_not)
    token = ensure_token(home) if home.elsewhere is None else ""

    def serving(launch: Launch, places: Places | None) -> dict[str, str]:
        own = home if places is None else places.home
        key = launch.key or worker_key(token, launch.attempt)
        found = {"POISE_HOME": str(own.root), "POISE_WORKER_KEY": key}
        if own.addresses:
            found["POISE_ADDRESS"] = own.addresses
        elif isinstance(own.elsewhere, Path):
            found["POISE_SOCKET"] = str(own.elsewhere)
        elif own.others:
            found["POISE_CONTROL"] = os.environ["POISE_CONTROL"]
        return found

    def following(launch: Launch, result: str, places: Places | None) -> tuple[str, ...]:
        files = keepers.tellings.plan_of(launch.attempt)
        key = launch.key or worker_key(token, launch.attempt)
        made = planned(home, launch, key, result, places, files=files)
        if made:
            keepers.tellings.planned(launch.attempt, "" if Path(plan_path(files)).exists() else NOT_PLANNED)
        return made

    keepers = Keepers(
        folder / "keepers",
        home.logs,
        node=name,
        gangs=home.gangs,
        checkpoints=home.checkpoints,
        registries=home.registries,
        devices=found.devices,
        cgroups=cgroups,
        accounts=Accounts(home, name) if found.accounts else None,
        serving=serving,
        following=following,
    )
    observed = await keepers.open()
    node = NodeMachine(found, sorted(os.sched_getaffinity(0)) if declared is None and part is None else [])
    node.withheld = range(MAX_DECLARED) if inventory is None else inventory.there
    node.adopt(observed.held, [keepers.tellings.last_word(done) for done in observed.ended])
    agent = Agent(home, keepers, node, offer)
    if part is not None and part.until:
        agent.end_at(part.until)
    agent.adopt(observed.held, observed.ended)
    settle_memory()
    loop = asyncio.get_running_loop()
    works = [
        agent.run(),
        agent.tidy_work(),
        agent.measure(),
        agent.watch_training(),
        agent.watch_sessions(),
        agent.watch_fitness(),
        agent.deliver(),
    ]
    if offer.prunes:
        works.append(keep_pruned(home.logs))
    if inventory is not None:
        works += [agent.watch_devices(inventory), agent.watch_faults(inventory)]
    everything = asyncio.gather(*map(loop.create_task, works))
    if options.leave:
        leaving = loop.create_task(agent.leave(options.leave))
        leaving.add_done_callback(lambda _: everything.cancel())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, everything.cancel)
    if options.attended:
        loop.add_reader(sys.stdin.fileno(), everything.cancel)  # nothing is ever written to it: it can only end
    _log.info("node %s: %d attempts adopted", name, len(observed.held))
    with contextlib.suppress(asyncio.CancelledError):
        await everything
    await keepers.close(quit=True)
    return STILL_RUNS if keepers.holding else 0


async def _dismiss(home: Home, folder: Path) -> int:
    """Stop the idle keepers of a folder. The exit code shows whether others remain."""
    keepers = Keepers(folder / "keepers", home.logs, node=folder.name, gangs=home.gangs, cgroups=None)
    await keepers.open()
    await keepers.close(quit=True)
    return STILL_RUNS if keepers.holding else 0


async def _retire(home: Home, folder: Path) -> None:
    """Stop everything that the keepers of a folder run, as for a cancelled job. The outcomes are not reported."""
    incarnation = incarnation_of(boot_id(), await asyncio.to_thread(identity, folder))
    cgroups = await asyncio.to_thread(probe_cgroups, incarnation[-12:])
    keepers = Keepers(folder / "keepers", home.logs, node=folder.name, gangs=home.gangs, cgroups=cgroups)
    left: set[Attempt] = set()
    over = asyncio.Event()

    def on_change(_: Sequence[Running], ended: Sequence[Ended]) -> None:
        left.difference_update(one.attempt for one in ended)
        if not left:
            over.set()

    keepers.on_change = on_change
    observed = await keepers.open()
    left.update(one.launch.attempt for one in observed.held)
    _log.info("node %s: %d attempts to end", folder.name, len(left))
    for one in observed.held:
        keepers.stop(one.launch.attempt)
    if left:
        await over.wait()
    keepers.forget([*(one.launch.attempt for one in observed.held), *(one.attempt for one in observed.ended)])
    await keepers.close(quit=True)
    await asyncio.to_thread(remove_folder, folder)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.agent", description="the agent of one node")
    parser.add_argument("home", type=Path)
    parser.add_argument("--name", default=os.uname().nodename)
    parser.add_argument("--declared", type=Path, help="compiled fleet that says what this node offers")
    parser.add_argument(
        "--connect",
        metavar="ADDRESS[,ADDRESS…]",
        help="address of the control plane, as `poise status` prints it where that runs; or of several: one leads",
    )
    parser.add_argument("--part", help="what of this machine is offered, as JSON: cpu, memory, devices")
    parser.add_argument("--attended", action="store_true", help="end when standard input ends: who started it has gone")
    parser.add_argument("--leave", metavar="WHY", help="stop all commands, report how each ended, and exit")
    parser.add_argument("--dismiss", action="store_true", help="end the keepers that run nothing, and leave")
    parser.add_argument("--retire", type=Path, help="folder of a node that is no longer part of the fleet")
    options = parser.parse_args()
    faulthandler.enable()  # prints the stack if native code crashes the process
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        home = home_at(options.home)
        check_node_name(options.name, "--name")
        if options.connect is not None:
            home = home_elsewhere(home.root, options.connect)
        ensure_home(home)
        if options.retire is not None:
            with take_lock(options.retire / "lock", "agent"):
                uvloop.run(_retire(home, options.retire.resolve()))
            return 0
        folder = home.node if options.declared is None else home.nodes / options.name
        with take_lock(folder / "lock", "agent"):
            return uvloop.run(_dismiss(home, folder) if options.dismiss else _main(home, folder, options))
    except PoiseError as error:
        _log.error("%s: %s %s", error.record.code, error, error.record.have)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
