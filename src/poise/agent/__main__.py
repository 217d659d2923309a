"""`python -m poise.agent`: the agent of one node.

It adopts what its keepers hold, dials the control plane's API, says what is here, and does what should be. When the
control plane is away it goes on with what it was given and tries again; when it is killed itself, its keepers go on.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import deque
from pathlib import Path

import msgspec
import uvloop
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from poise.config import Home, Times
from poise.drivers import sockets
from poise.drivers.devices import probe_node
from poise.drivers.lock import take_lock
from poise.drivers.logs import prune
from poise.drivers.process import Keepers
from poise.drivers.security import ensure_home, read_token
from poise.drivers.system import SystemClock, probe_cgroups, settle_memory
from poise.errors import PoiseError
from poise.kernel import node as machine
from poise.kernel.node import NodeMachine
from poise.model.messages import Beat, FromAgent, ToAgent
from poise.units import SECOND

RECONNECT_SECONDS = (0.05, 1.0)
PRUNE_SECONDS = 60.0
KEEP_LOG_BYTES = 4 * 2**30
KEEP_LOG_FILES = 50_000

_log = logging.getLogger("poise.agent")
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)
_encode = msgspec.msgpack.Encoder().encode


class Agent:
    """One node's loop: effects of the node machine carried out on its keepers and its channel."""

    def __init__(self, home: Home, name: str, keepers: Keepers, node: NodeMachine) -> None:
        self._home = home
        self._name = name
        self._keepers = keepers
        self._node = node
        self._clock = SystemClock()
        self._times = Times()
        self._unsent: deque[FromAgent] = deque()
        self._news = asyncio.Event()
        keepers.on_change = lambda running, ended: self._feed(machine.Changed(tuple(running), tuple(ended)))

    async def run(self) -> None:
        """Connect, and connect again, for ever."""
        pause = RECONNECT_SECONDS[0]
        while True:
            try:
                with contextlib.closing(sockets.connect(self._home.socket)) as sock:
                    sock.setblocking(False)
                    headers = {"Authorization": f"Bearer {read_token(self._home)}"}
                    uri = "ws://poise/v1/channel"
                    async with connect(
                        uri, sock=sock, additional_headers=headers, compression=None, max_size=None, ping_interval=None
                    ) as channel:
                        pause = RECONNECT_SECONDS[0]
                        await self._session(channel)
            except (OSError, WebSocketException, PoiseError, EOFError) as error:
                _log.debug("no channel: %s", error)
            finally:
                self._feed(machine.Disconnected())
                self._unsent.clear()
            await asyncio.sleep(pause)
            pause = min(RECONNECT_SECONDS[1], pause * 2)

    async def _session(self, channel: ClientConnection) -> None:
        self._unsent.clear()
        self._feed(machine.Connected())
        sender = asyncio.create_task(self._send(channel))
        try:
            async for frame in channel:
                self._feed(_to_agent.decode(frame if isinstance(frame, bytes) else frame.encode()))
        finally:
            sender.cancel()

    async def _send(self, channel: ClientConnection) -> None:
        """What the machine says, and a heartbeat when it is silent."""
        try:
            while True:
                while self._unsent:
                    await channel.send(_encode(self._unsent.popleft()))
                self._news.clear()
                try:
                    async with asyncio.timeout(self._times.heartbeat / SECOND):
                        await self._news.wait()
                except TimeoutError:
                    await channel.send(_encode(Beat()))
        except WebSocketException:
            return  # the reading side sees the same and ends the session

    def _feed(self, message: machine.Message) -> None:
        for effect in self._node.handle(message, self._clock.now()):
            match effect:
                case machine.Start():
                    self._keepers.start(effect.slot, effect.launch, effect.cpus)
                case machine.Stop():
                    self._keepers.stop(effect.attempt)
                case machine.Forget():
                    self._keepers.forget(effect.attempts)
                case machine.Say():
                    self._unsent.append(effect.message)
                    self._news.set()

    async def watch_devices(self) -> None:
        """Devices come and go: look again, and say so when something has changed."""
        while True:
            await asyncio.sleep(self._times.reprobe / SECOND)
            found = await asyncio.to_thread(probe_node, self._name, self._home.node)
            if found != self._node.node:
                _log.info("this node has changed: %s", found)
                self._node.node = found
                self._keepers.devices = {device.index: device for device in found.devices}
                self._feed(machine.Connected())

    async def prune_logs(self) -> None:
        while True:
            await asyncio.to_thread(prune, self._home.logs, KEEP_LOG_BYTES, KEEP_LOG_FILES)
            await asyncio.sleep(PRUNE_SECONDS)


async def _main(home: Home, name: str) -> None:
    found = await asyncio.to_thread(probe_node, name, home.node)
    cgroups = await asyncio.to_thread(probe_cgroups, found.incarnation[-12:])
    if not cgroups.writable:
        _log.info("memory is watched, not limited by cgroups: %s", cgroups.why_not)
    keepers = Keepers(home.node / "keepers", home.logs, devices=found.devices, cgroups=cgroups)
    observed = await keepers.open()
    node = NodeMachine(found, sorted(os.sched_getaffinity(0)))
    node.adopt(observed.held, observed.ended)
    agent = Agent(home, name, keepers, node)
    settle_memory()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in (agent.run(), agent.watch_devices(), agent.prune_logs())]
    everything = asyncio.gather(*tasks)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, everything.cancel)
    _log.info("node %s: %d attempts adopted", name, len(observed.held))
    with contextlib.suppress(asyncio.CancelledError):
        await everything
    await keepers.close(quit=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m poise.agent", description="the agent of one node")
    parser.add_argument("home", type=Path)
    parser.add_argument("--name", default=os.uname().nodename)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    home = Home(options.home.resolve())
    try:
        ensure_home(home)
        with take_lock(home.node / "lock", "agent"):
            uvloop.run(_main(home, options.name))
    except PoiseError as error:
        _log.error("%s: %s %s", error.record.code, error, error.record.have)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
