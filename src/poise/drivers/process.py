"""The processes of one machine: an `Executor` over keepers, one per slot.

A keeper (`keeper.py`) runs the commands of one slot and outlives this process. This module is the agent's side: it
starts a keeper when a slot is first used, sends it commands in batches, and finds it again after a restart of the
agent. After a killed keeper it ends the remaining processes and reports their attempts as `lost`.

Everything is level-triggered. The slots in memory hold the desired state; on every connection a keeper reports the
attempts it holds and is then sent the difference.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import re
import resource
import signal
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from poise.decoding import json_decoder
from poise.drivers import containers
from poise.drivers.accounts import Accounts, Owner, Places, give, hidden
from poise.drivers.gangs import Gangs
from poise.drivers.keeper import START
from poise.drivers.owner import LEAST_ID, Refused
from poise.drivers.places import log_paths, log_stem, plain_name
from poise.drivers.system import Cgroups, boot_id
from poise.drivers.tellings import Tellings, report_path, result_path
from poise.errors import Fault, SpecError
from poise.model.jobs import Ending, Limits, limits_of
from poise.model.messages import (
    Attempt,
    Credit,
    Ended,
    Exec,
    Fed,
    Feed,
    FromConsole,
    Launch,
    Leave,
    Left,
    Running,
    Said,
    Sized,
    ToConsole,
)
from poise.model.resources import WHOLE, Device
from poise.model.training import CHECKPOINTS, ORDERS, REPORT, UNIT, Orders
from poise.ports import Held, Observation

_log = logging.getLogger("poise.agent")
_PROGRAM = Path(__file__).with_name("keeper.py")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_TASK = re.compile(r"[A-Za-z0-9._\-\[\]]{1,200}")
_NAME = re.compile(r"slot-(\d{1,6})")
_PAUSES = (0.02, 0.1, 0.5, 2.0)
_START_SECONDS = 10.0
_BURY_SECONDS = 5.0
_PODMAN_SECONDS, _MOST_PODMAN_SECONDS = 10.0, 600.0  # until podman, which failed, is asked again


class Order(Limits, frozen=True, kw_only=True, omit_defaults=True):
    """All that a keeper needs to run one command; see the protocol at the head of `keeper.py`."""

    argv: tuple[str, ...]
    env: dict[str, str]
    folder: str = ""
    cpus: tuple[int, ...] = ()
    memory: int = 0
    out: str
    err: str
    bound: int = 0
    result: str
    progress: str = ""
    until: int = 0
    append: bool = False
    make: bool = False
    owner: Owner | None = None


class _Run(msgspec.Struct, frozen=True, array_like=True, tag="run"):
    attempt: Attempt
    order: Order
    launch: Launch


class _Greeting(msgspec.Struct, frozen=True, array_like=True, tag="keeper"):
    version: int
    pid: int


class _Holds(msgspec.Struct, frozen=True, array_like=True, tag="held"):
    pid: int
    ticks: int
    run: _Run


class _Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    attempt: Attempt
    pid: int
    ticks: int


class _Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    attempt: Attempt
    ending: Ending


class _Sized(msgspec.Struct, frozen=True, array_like=True, tag="sized"):
    attempt: Attempt
    memory: int
    used: int
    short: bool


class _Unfit(msgspec.Struct, frozen=True, array_like=True, tag="unfit"):
    why: str


class _Fed(msgspec.Struct, frozen=True, array_like=True, tag="fed"):
    whose: Attempt | str
    taken: int
    wanted: bool


class _Said(msgspec.Struct, frozen=True, array_like=True, tag="said"):
    name: str
    stream: str
    data: bytes


class _Left(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    name: str
    code: int
    note: str


class _Whole(msgspec.Struct, frozen=True, array_like=True, tag="whole"):
    pass


class _Starting(msgspec.Struct, frozen=True, array_like=True, tag="starting"):
    attempt: Attempt


class _Forgotten(msgspec.Struct, frozen=True, array_like=True, tag="forget"):
    attempts: tuple[Attempt, ...]


class _Header(msgspec.Struct, frozen=True, array_like=True, tag="keeper"):
    version: int
    pid: int
    boot: str


CAPTURE = str(Path(__file__).with_name("capture.py"))
SESSION = str(Path(__file__).with_name("session.py"))
"""The program that takes captures of attempts, run as a side command."""

_TRY = b'["try"]\n'
_encode = msgspec.json.Encoder().encode
_messages = json_decoder(_Greeting | _Holds | _Started | _Ended | _Sized | _Unfit | _Fed | _Said | _Left | _Whole)
_entries = json_decoder(_Header | _Starting | _Started | _Ended | _Forgotten)


def environment(
    launch: Launch, *, result: str, gang_folder: str = "", gang_address: str = "", devices: Mapping[int, Device]
) -> dict[str, str]:
    """Return the complete environment of a command: the job's variables, the attempt's identity, and its own devices
    only."""
    task = launch.attempt.task
    env = {"PATH": _PATH, **launch.env, **visible(launch.devices, devices)}
    env["POISE_TASK"] = task
    env["POISE_JOB"] = task.partition(".")[0]
    env["POISE_EPOCH"] = str(launch.attempt.epoch)
    env[UNIT] = f"{launch.gang or task}-{launch.submitted:x}"
    env["POISE_RESULT"] = result
    env[REPORT] = report_path(result)
    if launch.shape.memory:
        env["POISE_MEMORY"] = str(launch.shape.memory)
    if launch.devices and launch.shape.share != WHOLE:
        env["POISE_GPU_SHARE"] = str(launch.shape.share)
        if launch.shape.gpu_memory:
            env["POISE_GPU_MEMORY"] = str(launch.shape.gpu_memory)
    if launch.tty and not launch.rank:
        env.setdefault("TERM", TERMINAL)
    if launch.hang:
        env["POISE_PROGRESS"] = _progress(result)
    if launch.gang:
        env["POISE_RANK"], env["POISE_WORLD_SIZE"] = str(launch.rank), str(launch.world)
        env["POISE_GANG_DIR"] = gang_folder
        env.update(_as_torchrun(launch, env[UNIT]))
        if gang_address:
            env["POISE_GANG_ADDRESS"] = gang_address
    if launch.founded:
        env["POISE_GENERATION"] = str(launch.generation)
        env[ORDERS] = orders_path(result)
    if launch.parts:
        env["POISE_PART"] = str(launch.part)
        env["POISE_PARTS"] = str(launch.parts)
    return env


def _as_torchrun(launch: Launch, unit: str) -> dict[str, str]:
    """Return the variables that torchrun sets for one worker per machine: a member sees only its own devices, numbered
    from 0. All members of an attempt compute the same port; another attempt gets another one. A job may declare
    `MASTER_ADDR` and `MASTER_PORT` itself.
    """
    rank, world = str(launch.rank), str(launch.world)
    drawn = zlib.crc32(f"{unit}.{launch.founded or launch.attempt.epoch}".encode())
    return {
        "MASTER_ADDR": launch.env.get("MASTER_ADDR") or launch.first or "127.0.0.1",
        "MASTER_PORT": launch.env.get("MASTER_PORT") or str(PORTS[drawn % len(PORTS)]),
        **dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK"), rank),
        **dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


TERMINAL = "xterm-256color"
"""The `TERM` of a terminal whose client did not send one."""

PORTS = range(20_000, 30_000)
"""`MASTER_PORT` range of gangs, below the ephemeral ports (from 32768 on Linux)."""

_NO_DEVICES = {
    "CUDA_VISIBLE_DEVICES": "",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "ROCR_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "ASCEND_RT_VISIBLE_DEVICES": "",
}


def visible(indices: Sequence[int], devices: Mapping[int, Device]) -> dict[str, str]:
    """Return the variables by which accelerator drivers hide all devices but these.

    ROCm's runtime hides devices first (`ROCR_…`), and HIP numbers the remaining ones from 0. HIP is set to use all of
    them, because some frameworks read only its variable. Ascend's driver accepts only ascending numbers.
    """
    if not indices:
        return _NO_DEVICES
    numbers: dict[str, list[int]] = {}
    nvidia = []
    for index in indices:
        device = devices.get(index, Device(index=index))
        number = index if device.driver_index is None else device.driver_index
        numbers.setdefault(device.maker, []).append(number)
        if device.maker == "nvidia":
            nvidia.append(device.uuid or str(number))
    amd, ascend = numbers.get("amd", []), numbers.get("ascend", [])
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(nvidia),
        "NVIDIA_VISIBLE_DEVICES": ",".join(nvidia) or "void",
        "ROCR_VISIBLE_DEVICES": ",".join(map(str, amd)),
        "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(amd)))),
        "ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, sorted(ascend))),
    }


class Traffic(NamedTuple):
    """Bytes of input: `typed` to the command, to commands beside it and to SSH sessions; `sent` to its ports."""

    typed: int = 0
    sent: int = 0


class Keepers:
    """The executor of one node. Call `open` first; all calls and `on_change` run on the loop that opened it. Members of
    gangs meet in the folder `gangs`, which nodes may share.
    """

    on_change: Callable[[Sequence[Running], Sequence[Ended]], None]
    on_console: Callable[[FromConsole], None]
    """Called with input that commands have taken, and with output of side commands."""

    on_sized: Callable[[Sized], None]
    """Called with a memory limit that was lowered, and when a lowered one is too low."""

    on_fitness: Callable[[str], None]
    """Called with the reason when this node cannot start commands and has returned them, and with "" once it can
    again."""

    def __init__(
        self,
        folder: Path,
        logs: Path,
        *,
        node: str = "",
        gangs: Path | None = None,
        checkpoints: Path | None = None,
        registries: Path | None = None,
        devices: Sequence[Device] = (),
        cgroups: Cgroups | None = None,
        accounts: Accounts | None = None,
        log_bound: int = 64 << 20,
        spare: int = 2,
        idle_seconds: float = 60.0,
        serving: Callable[[Launch, Places | None], Mapping[str, str]] = lambda launch, places: {},
        following: Callable[[Launch, str, Places | None], tuple[str, ...]] = lambda launch, result, places: (),
    ) -> None:
        """`serving` returns the variables by which an attempt that serves calls finds the control plane. Training keeps
        its checkpoints in `checkpoints`. `registries` has the tenants' credentials for images. `following` prepares an
        attempt with uploaded files, given the path for its result: it returns the command's folder, followed by the
        program and arguments to put before the command; or nothing if the command runs in the folder that the job
        names. With `accounts`, commands run as the accounts of their owners, in folders of these; both functions get
        the places of such an attempt.
        """
        self.on_change = lambda running, ended: None
        self.on_fitness = lambda why: None
        self.on_sized = lambda sized: None
        self.on_console = lambda message: None
        self.folder = folder.absolute()
        self.logs = logs.absolute()
        self.devices = {device.index: device for device in devices}
        self.log_bound = log_bound
        self.address = ""
        """Address of this machine for gang members on other machines; empty if there are none."""
        self.until: dict[Attempt, int] = {}
        self.limits: dict[Attempt, tuple[int, int]] = {}  # time limit and memory (0: as at launch), if changed
        self.paused: dict[Attempt, bool] = {}  # the last order to each session
        self.closing = False
        self.podman = containers.engine()
        self._serving = serving
        self._following = following
        cgroup = None
        if cgroups is not None and cgroups.writable:
            cgroup = {"version": cgroups.version, "parent": cgroups.parent, "home": cgroups.home}
        self.spares = f"{self.logs}/.{plain_name(node)}." if node else f"{self.logs}/."
        self.hello = _encode(["hello", {"spare": self.spares, "cgroup": cgroup}]) + b"\n"
        self._results = f"{self.folder}/results/"
        self.tellings = Tellings(self._results)
        self._logs_text = str(self.logs)
        self.cgroup_parent = cgroups.parent if cgroups is not None and cgroups.writable else ""
        self._spare = spare
        self._idle_seconds = idle_seconds
        self._slots: dict[int, _Slot] = {}
        self._where: dict[Attempt, _Slot] = {}
        self._beside: dict[str, _Slot] = {}  # slots of the named side commands
        self._named: dict[str, tuple[Attempt, bool]] = {}  # of each its attempt, and whether it connects to a port
        self._traffic: dict[Attempt, Traffic] = {}
        self._gangs = Gangs(gangs or self.folder / "gangs", node, plain_name)
        self._checkpoints = checkpoints or self.folder / "checkpoints"
        self.accounts = accounts
        self._gangs_of: dict[str, Gangs] = {}  # of accounts, which cannot reach the folder of the others
        self._node = node
        self.registries = registries or self.folder / "registries"
        self._adopted: list[Launch] = []
        self._contained: set[Attempt] = set()  # attempts in containers
        self._burying: set[asyncio.Task[None]] = set()  # of containers that are over
        self._left_over: set[str] = set()  # names of containers that podman has yet to forget
        self._forgetting: asyncio.Task[None] | None = None
        self._members: set[Attempt] = set()  # members of elastic gangs: each has a file of orders
        self._retiring: asyncio.Task[None] | None = None
        self._observed: list[Ended] | None = None

    async def open(self) -> Observation:
        """Adopt the live keepers of an earlier agent, and clean up after killed ones."""
        for place in (self.folder, self.logs, self.folder / "results"):
            await asyncio.to_thread(place.mkdir, mode=0o700, parents=True, exist_ok=True)
        self._observed = []
        numbers = {int(match[1]) for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.stem))}
        for number in sorted(numbers):
            self._slots[number] = _Slot(self, number)
        await asyncio.gather(*(slot.adopt() for slot in self._slots.values()))
        alive = {attempt for attempt, slot in self._where.items() if attempt in slot.held}
        strays, left = await asyncio.to_thread(end_orphans, self._results, lambda attempt: attempt not in alive)
        self._observed += [
            Ended(attempt=attempt, ending=_lost(left)) for attempt in sorted(strays) if attempt not in self._where
        ]
        await asyncio.to_thread(self._gangs.open, [of for of in self._adopted if of.gang and not account_of(of)])
        await asyncio.to_thread(self._reopen_accounts)
        await asyncio.to_thread(self.tellings.tidy, [*self._where])
        if self.podman:
            judged = await asyncio.to_thread(self._judged, tuple(self._observed))
            self._observed[: len(judged)] = judged
            await asyncio.to_thread(self._checkpoints.mkdir, mode=0o700, parents=True, exist_ok=True)
            await asyncio.to_thread(containers.prepare, self.registries)
            node = str(self.folder)
            kept = {containers.name_of(node, attempt) for attempt in alive}
            self._forget({*await asyncio.to_thread(containers.left_over, self.podman, node)} - kept)
        ended, self._observed = self._observed, None
        held = [one for _, slot in sorted(self._slots.items()) for one in slot.held.values()]
        self._retiring = asyncio.get_running_loop().create_task(self._retire())
        return Observation(tuple(held), tuple(ended))

    def start(self, slot: int, launch: Launch, cpus: tuple[int, ...] = ()) -> None:
        """Run an attempt on a slot, after the attempts already queued there. Idempotent per attempt."""
        if launch.attempt in self._where:
            return
        if not _TASK.fullmatch(launch.attempt.task) or "\0" in "".join(launch.argv):
            raise SpecError(f"`{launch.attempt.task}` is not the name of a task", field="task", code="E107")
        place = self._slots.get(slot)
        if place is None:
            place = self._slots[slot] = _Slot(self, slot)
        self._where[launch.attempt] = place
        if launch.founded:
            self._members.add(launch.attempt)
            self._owned(launch)  # its orders belong to its account
            self._write_orders(launch.attempt, launch.orders)
        place.start(Held(slot, launch, cpus, None))

    def try_out(self) -> None:
        """Check with the keeper of the first slot whether a command could be started; `on_fitness` gets the answer."""
        slot = self._slots.get(0)
        if slot is None:
            slot = self._slots[0] = _Slot(self, 0)
        slot.try_out()

    def stop(self, attempt: Attempt, hung: str = "") -> None:
        """Stop a running attempt, or return a waiting one; do nothing if it is not held. `hung` describes why it counts
        as hung, and makes its outcome `hung`.
        """
        slot = self._where.get(attempt)
        if slot is not None:
            slot.stop(attempt, hung)

    def renew(self, attempt: Attempt, until: int) -> None:
        """Make the keeper kill the attempt at this instant of CLOCK_BOOTTIME, unless renewed."""
        self.until[attempt] = until
        slot = self._where.get(attempt)
        if slot is not None:
            slot.renew(attempt, until)

    def limit(self, attempt: Attempt, time_limit: int, memory: int) -> None:
        """Replace the attempt's time limit, after which the keeper stops it (0: never), and raise its memory limit
        (bytes; 0: keep it).
        """
        slot = self._where.get(attempt)
        if slot is not None:
            self.limits[attempt] = time_limit, memory
            slot.limit(attempt, time_limit, memory)

    def shrink(self, attempt: Attempt, memory: int) -> None:
        """Lower the memory limit of a running attempt, if it has never used nearly as much. `on_sized` gets the
        answer, if any.
        """
        slot = self._where.get(attempt)
        if slot is not None:
            slot.say("shrink", attempt, memory)

    def pause(self, attempt: Attempt, *, on: bool) -> None:
        """Stop the processes of an attempt, or continue them; its keeper ignores it if they are so already."""
        self.paused[attempt] = on
        self._tell(attempt, "pause", on)

    def note(self, attempt: Attempt, text: str) -> None:
        """Show a text in the terminals of an attempt, if it has any."""
        self._tell(attempt, "note", text)

    def end_idle(self, attempt: Attempt, note: str) -> None:
        """Stop an attempt that is idle, for the reason in `note`; its outcome is `timeout`."""
        self._tell(attempt, "idle", note)

    def _tell(self, attempt: Attempt, kind: str, value: object) -> None:
        if (slot := self._where.get(attempt)) is not None and attempt in slot.held:
            slot.say(kind, attempt, value)

    def keeper_of(self, attempt: Attempt) -> int:
        """Return the process id of the keeper of an attempt; 0 if there is none."""
        slot = self._where.get(attempt)
        return slot.keeper if slot is not None and slot.up else 0

    def traffic(self, attempt: Attempt) -> Traffic:
        """Return how much input an attempt has had since this agent started."""
        return self._traffic.get(attempt, Traffic())

    def order(self, attempt: Attempt, orders: Orders) -> None:
        """Tell a member of an elastic gang its new members. A member may also start later and read them then."""
        if attempt in self._where:
            self._write_orders(attempt, orders)

    def console(self, message: ToConsole) -> None:
        """Pass a client's message to a command. A message to an unknown command is answered with `Left`."""
        match message:
            case Exec():
                slot = self._where.get(message.attempt)
                if slot is None or not slot.up:
                    self.on_console(Left(name=message.name, code=126, note="its task does not run here any more"))
                    return
                self._beside[message.name] = slot
                self._named[message.name] = (message.attempt, message.session[:1] == ("port",))
                self._count(message.name, 1)
                argv = message.argv
                if message.capture or message.session:
                    program = CAPTURE if message.capture else SESSION
                    argv = (sys.executable, "-I", "-S", program, *message.capture, *message.session)
                order = {"argv": argv, "env": message.env, "stdin": message.stdin, "tty": message.tty}
                slot.say("exec", message.name, message.attempt, order)
            case Feed():
                whose = message.whose
                slot = self._beside.get(whose) if isinstance(whose, str) else self._where.get(whose)
                if slot is not None:
                    self._count(whose, len(message.piece.data))
                    slot.say("feed", whose, message.piece)
            case Credit():
                if (slot := self._beside.get(message.name)) is not None:
                    slot.say("credit", message.name, message.bytes)
            case Leave():
                if (slot := self._beside.get(message.name)) is not None:
                    slot.say("leave", message.name)

    def _count(self, whose: Attempt | str, size: int) -> None:
        """Count input to a command."""
        attempt, of_port = self._named.get(whose, (None, False)) if isinstance(whose, str) else (whose, False)
        if attempt is not None:
            typed, sent = self.traffic(attempt)
            self._traffic[attempt] = Traffic(typed + size * (not of_port), sent + size * of_port)

    def leave_all(self) -> None:
        """End all side commands, because they have no client any more."""
        for name in list(self._beside):
            self.console(Leave(name=name))

    def heard(self, message: FromConsole) -> None:
        """Handle a message of a slot's keeper."""
        if isinstance(message, Left):
            self._beside.pop(message.name, None)
            self._named.pop(message.name, None)
        self.on_console(message)

    def gone(self, slot: "_Slot") -> None:
        """Report a slot's side commands as ended: its connection is lost, so the keeper has ended them or will be
        ended."""
        for name in [name for name, place in self._beside.items() if place is slot]:
            self.heard(Left(name=name, code=137, note="its keeper has gone"))

    def _write_orders(self, attempt: Attempt, orders: Orders) -> None:
        """Write the orders atomically. If the disk is full, the member keeps its current orders and gets new ones when
        this agent reconnects.
        """
        path = Path(orders_path(self._result_of(attempt)))
        fresh = path.with_suffix(".orders.new")
        try:
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()
            fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)  # never through a link
            try:
                if (account := self.tellings.account_of(attempt)) is not None:
                    os.fchown(fd, account.uid, account.gid)
                os.write(fd, _encode(orders))
            finally:
                os.close(fd)
            fresh.replace(path)
        except OSError as error:
            _log.warning("%s could not be told of its gang: %s", attempt, error)

    def forget(self, attempts: Sequence[Attempt]) -> None:
        """Discard these endings, which are durable elsewhere."""
        by_slot: dict[_Slot, list[Attempt]] = {}
        for attempt in attempts:
            if attempt in self._members:
                self._members.remove(attempt)
                with contextlib.suppress(OSError):
                    Path(orders_path(self._result_of(attempt))).unlink()
            slot = self._where.get(attempt)
            self._traffic.pop(attempt, None)
            if slot is not None and attempt not in slot.held:
                del self._where[attempt]
                by_slot.setdefault(slot, []).append(attempt)
        for slot, group in by_slot.items():
            slot.forget(group)
        for gangs in (self._gangs, *self._gangs_of.values()):
            gangs.leave(attempts)
        self.tellings.forget(attempts)

    @property
    def holding(self) -> bool:
        """Return whether any attempt runs or waits here."""
        return any(slot.held for slot in self._slots.values())

    async def close(self, quit: bool = False) -> None:
        """Disconnect from the keepers, which continue; with `quit`, idle keepers exit."""
        self.closing = True
        for task in (self._retiring, self._forgetting):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(slot.close(quit) for slot in self._slots.values()))
        if quit and self.cgroup_parent:
            with contextlib.suppress(OSError):  # a command still runs in it
                await asyncio.to_thread(os.rmdir, self.cgroup_parent)

    # -- what slots call

    def launched(self, held: Held) -> bytes:
        """Return the `run` line of an attempt."""
        launch = held.launch
        attempt = launch.attempt
        owner, places = self._owned(launch)
        followed: tuple[str, ...] = ()
        try:
            if launch.tree is not None and (places is not None or owner is None):
                followed = self._following(launch, self._result_of(attempt), places)
        except Refused as why:
            owner = Owner(account_of(launch), refused=str(why))
        folder, first = (followed[0], followed[1:]) if followed else (launch.folder, ())
        stem = log_stem(self._logs_text, attempt)
        result = self._result_of(attempt)
        gang_folder = self._gang_folder(launch, places) if launch.gang else ""
        env = environment(
            launch, result=result, gang_folder=gang_folder, gang_address=self.address, devices=self.devices
        )
        checkpoints = self._checkpoints if places is None else places.checkpoints
        env.setdefault(CHECKPOINTS, str(checkpoints / env["POISE_JOB"] / plain_name(env[UNIT])))
        if launch.serves:
            env.update(self._serving(launch, places))
        argv = launch.argv
        if launch.image:
            argv = self._in_container(launch, env, folder, gang_folder, places)
        order = Order(
            argv=(*first, *argv),
            env=env,
            folder=folder,
            cpus=held.cpus,
            memory=self.limits.get(attempt, (0, 0))[1] or launch.shape.memory,
            out=stem + ".out",
            err=stem + ".err",
            bound=self.log_bound,
            result=result,
            progress=_progress(result) if launch.hang else "",
            until=self.until.get(attempt, 0),
            append=attempt.epoch > 1 and "%a" not in launch.output.replace("%%", ""),
            make=bool(followed) and places is not None,
            owner=owner,
            **limits_of(launch)
            | {
                "output": output_path(launch, folder),
                "time_limit": self.limits.get(attempt, (launch.time_limit, 0))[0],
                "image": "",
            }
            | ({"stdin": False, "tty": 0} if launch.rank else {}),
        )
        return _encode(_Run(attempt, order, launch)) + b"\n"

    def _owned(self, launch: Launch) -> tuple[Owner | None, Places | None]:
        """Return the request to run an attempt as the account of its owner, and its folders; nothing for one that runs
        as the user of this process. If the account is not there, the keeper tells so instead of starting the command.
        """
        name = account_of(launch)
        if not name:
            return None, None
        try:
            if self.accounts is None:
                raise Refused("only an agent that runs as root runs commands as other users")
            places = self.accounts.ensure(name)
        except Refused as why:
            return Owner(name, refused=str(why)), None
        except OSError as error:
            return Owner(name, refused=f"the folders of `{name}` cannot be made: {error}"), None
        self.tellings.owned(launch.attempt, places.results, places.account, f"{places.plans}/")
        own = [self.devices[index] for index in launch.devices if index in self.devices]
        return Owner(name, places.tmp, hidden(own)), places

    def _result_of(self, attempt: Attempt) -> str:
        return result_path(self.tellings.folder_of(attempt), attempt)

    def _gang_folder(self, launch: Launch, places: Places | None) -> str:
        """Join a gang, and return its folder, which belongs to the account of its members."""
        if places is None:
            return self._gangs.join(launch)
        gangs = self._gangs_of.setdefault(places.account.name, Gangs(places.gangs, self._node, plain_name))
        folder = gangs.join(launch)
        with contextlib.suppress(OSError):
            give(Path(folder), places.account)
        return folder

    def _reopen_accounts(self) -> None:
        """Take over the attempts of accounts that an earlier agent has started, and remove what others have left."""
        held = [one.launch for slot in self._slots.values() for one in slot.held.values()]
        members: dict[str, tuple[Places, list[Launch]]] = {}
        for launch in held:
            _, places = self._owned(launch)
            if places is not None:
                members.setdefault(places.account.name, (places, []))[1].append(launch)
        for name, (places, launches) in members.items():
            self._gangs_of[name] = Gangs(places.gangs, self._node, plain_name)
            self._gangs_of[name].open([launch for launch in launches if launch.gang])
        if self.accounts is not None:
            self.accounts.tidy(members)

    def _in_container(
        self, launch: Launch, env: dict[str, str], folder: str, gang_folder: str, places: Places | None
    ) -> tuple[str, ...]:
        """Return the command that runs an attempt in a container; `env` also gets the variables that podman needs, of
        this user. Those of an account are set by its login.
        """
        if places is None:
            self._contained.add(launch.attempt)
            env.update((name, os.environ[name]) for name in containers.OF_PODMAN if name in os.environ)
            pull = containers.pulled(launch.image, launch.tenant, self.registries)
            shared = (self._results, gang_folder, str(self._checkpoints))
        else:
            pull = containers.OF_OWN_STORAGE
            shared = (places.results, gang_folder, str(places.checkpoints))
        return containers.wrapped(
            self.podman,
            launch.image,
            launch.argv,
            env,
            pull=pull,
            folder=folder,
            shared=shared,
            rootless=places is not None,
            devices=[self.devices[index] for index in launch.devices if index in self.devices],
            memory=launch.shape.memory,
            node=str(self.folder),
            name=containers.name_of(str(self.folder), launch.attempt),
        )

    def adopted(self, slot: "_Slot", attempt: Attempt, launch: Launch | None) -> None:
        self._where[attempt] = slot
        if launch is not None and launch.gang:
            self._adopted.append(launch)
        if launch is not None and launch.founded:
            self._members.add(attempt)
        if launch is not None and launch.image and not account_of(launch):
            self._contained.add(attempt)

    def changed(self, running: list[Running], ended: list[Ended]) -> None:
        for done in ended if self.until else ():
            self.until.pop(done.attempt, None)
        for done in ended if self.limits else ():
            self.limits.pop(done.attempt, None)
        for done in ended if self.paused else ():
            self.paused.pop(done.attempt, None)
        if self._observed is not None:
            self._observed += ended
            return
        if self._contained and (over := [done for done in ended if done.attempt in self._contained]):
            self._contained.difference_update([done.attempt for done in over])
            doubtful = [done for done in over if containers.may_have_run_out(done.ending)]
            ended = [done for done in ended if done not in doubtful]
            burying = asyncio.get_running_loop().create_task(self._bury_containers(over, doubtful))
            self._burying.add(burying)
            burying.add_done_callback(self._burying.discard)
        if (running or ended) and not self.closing:
            self.on_change(running, ended)

    async def _bury_containers(self, over: list[Ended], doubtful: list[Ended]) -> None:
        """Report the doubtful ends of containers as podman knows them, and let it forget all that are over."""
        judged = await asyncio.to_thread(self._judged, doubtful) if doubtful else []
        if self.closing:  # the next agent does both
            return
        if judged:
            self.on_change([], judged)
        self._forget(containers.name_of(str(self.folder), done.attempt) for done in over)

    def _forget(self, names: Iterable[str]) -> None:
        """Let podman forget these containers, as soon as it can."""
        self._left_over.update(names)
        if self._left_over and (self._forgetting is None or self._forgetting.done()):
            self._forgetting = asyncio.get_running_loop().create_task(self._forget_all())

    async def _forget_all(self) -> None:
        pause = _PODMAN_SECONDS
        while self._left_over:
            names = sorted(self._left_over)
            if await asyncio.to_thread(containers.forget, self.podman, names):
                self._left_over.difference_update(names)
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MOST_PODMAN_SECONDS)

    def _judged(self, ended: Sequence[Ended]) -> list[Ended]:
        """Return these ends; a container that was killed because its memory ran out has the outcome `oom`."""
        made = []
        for done in ended:
            ending, name = done.ending, containers.name_of(str(self.folder), done.attempt)
            if containers.may_have_run_out(ending) and containers.ran_out(self.podman, name):
                ending = msgspec.structs.replace(ending, outcome="oom", peak=max(ending.peak, ending.limit))
            made.append(msgspec.structs.replace(done, ending=ending))
        return made

    async def _retire(self) -> None:
        """Dismiss keepers that have been idle for `idle_seconds`, except for `spare` of them."""
        while True:
            await asyncio.sleep(self._idle_seconds / 4)
            moment = time.monotonic()
            idle = [slot for _, slot in sorted(self._slots.items()) if slot.up and not slot.held]
            for slot in idle[self._spare :]:
                if moment - slot.idle_since > self._idle_seconds:
                    slot.dismiss()


class _Slot(asyncio.Protocol):
    """One slot: the connection to its keeper, and the attempts it should hold."""

    def __init__(self, keepers: Keepers, number: int) -> None:
        self.number = number
        self.name = f"slot-{number}"
        self.held: dict[Attempt, Held] = {}
        self.up = False
        self.idle_since = time.monotonic()
        self.mark = mark_of(f"{keepers.folder}/{self.name}")
        self._keepers = keepers
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._work: asyncio.Task[None] | None = None
        self._whole: asyncio.Future[None] | None = None
        self._lost: asyncio.Event = asyncio.Event()
        self.keeper = 0  # its process id, once connected
        self._partial = b""
        self._outbox: list[bytes] = []
        self._stopping: dict[Attempt, str] = {}  # with the evidence for those that hang
        self._endings: set[Attempt] = set()  # endings still in the keeper or its journal
        self._forgotten: set[Attempt] = set()  # not sent yet
        self._named: set[Attempt] = set()  # attempts named so far in an answer to hello
        self._dismissed = False
        self._recalled = False
        self._trying = False

    # -- desired state

    def start(self, held: Held) -> None:
        self.held[held.launch.attempt] = held
        if self.up:
            self._say(self._keepers.launched(held))
        else:
            self._call()

    def try_out(self) -> None:
        self._trying = True
        if self.up:
            self._say(_TRY)
        else:
            self._call()

    def _call(self) -> None:
        """Ensure that there is a keeper."""
        if not self._dismissed or self._transport is None:
            self._ensure()
        elif not self._recalled:
            self._recalled = True
            self._transport.write(self._keepers.hello)  # it may have exited already; then another is started

    def stop(self, attempt: Attempt, hung: str = "") -> None:
        if attempt in self.held and attempt not in self._stopping:
            self._stopping[attempt] = hung
            if self.up:
                self._say(_encode(["stop", attempt, hung]) + b"\n")

    def renew(self, attempt: Attempt, until: int) -> None:
        if self.up and attempt in self.held:
            self._say(_encode(["renew", attempt, until]) + b"\n")

    def limit(self, attempt: Attempt, time_limit: int, memory: int) -> None:
        if self.up and attempt in self.held:
            self._say(_encode(["limit", attempt, time_limit, memory]) + b"\n")

    def say(self, *message: Any) -> None:
        """Send a message that is valid only now: without a connection it is dropped."""
        if self.up:
            self._say(_encode(message) + b"\n")

    def forget(self, attempts: list[Attempt]) -> None:
        self._endings.difference_update(attempts)
        if self.up:
            self._say(_encode(["forget", attempts]) + b"\n")
            return
        self._forgotten.update(attempts)
        if self._transport is None and self._work is None:
            self._bury_if_empty()

    def dismiss(self) -> None:
        self.up = False
        self._dismissed = True
        self._outbox.append(b'["quit"]\n')
        self._flush()

    async def adopt(self) -> None:
        """Connect to the keeper of an earlier agent, or clean up after it."""
        for pause in _PAUSES:
            if not await self._still_locked():
                await self._bury({})
                self._bury_if_empty()
                return
            try:
                await self._connect()
                return
            except TimeoutError:
                await self._end_keeper()
            except OSError:
                await asyncio.sleep(pause)
        raise Fault(
            f"the keeper of slot {self.number} does not answer",
            hint=f"end the process that holds `{self._keepers.folder}/{self.name}.lock`",
        )

    async def _end_keeper(self) -> None:
        """Kill a keeper that lives but does not answer: it is stopped or hung. Its commands could be neither watched
        nor ended when their lease expires. The caller then cleans up after it.
        """
        self._whole = self._loop.create_future()  # this method handles the end of the connection
        with contextlib.suppress(OSError):
            os.kill(self.keeper, signal.SIGKILL)
            await asyncio.wait_for(self._whole, _BURY_SECONDS)
        self._whole = None

    async def close(self, quit: bool) -> None:
        if self._work is not None:
            self._work.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await self._work
        if self._transport is None:
            return
        if self._outbox:
            self._flush()
        if quit:
            self._transport.write(b'["quit"]\n')
            if not self.held:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._lost.wait(), 2.0)
        if self._transport is not None:
            self._transport.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), 2.0)

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        self._partial = b""
        self._lost.clear()
        self._named.clear()
        stream.write(self._keepers.hello)

    def data_received(self, data: bytes) -> None:
        if self._partial:
            data = self._partial + data
        end = data.rfind(b"\n") + 1
        self._partial = data[end:]
        running: list[Running] = []
        ended: list[Ended] = []
        try:
            for message in _messages.decode_lines(data[:end]):
                self._on_message(message, running, ended)
        except msgspec.DecodeError:  # not a valid message: reconnect
            if self._transport is not None:
                self._transport.abort()
        if not self.held:
            self.idle_since = time.monotonic()
        self._keepers.changed(running, ended)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.up = False
        self._outbox.clear()
        self._lost.set()
        self._keepers.gone(self)
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(ConnectionResetError("the keeper has closed the connection"))
            return  # the waiter continues
        if not self._keepers.closing and self._work is None:
            self._work = self._loop.create_task(self._after_loss())

    def _on_message(self, message: Any, running: list[Running], ended: list[Ended]) -> None:
        kind = type(message)
        if kind is _Ended:
            attempt = message.attempt
            if not self.up:
                self._named.add(attempt)
            if attempt in self._forgotten or attempt in self._endings:
                return
            self._endings.add(attempt)
            if self.held.pop(attempt, None) is None:
                self._keepers.adopted(self, attempt, None)
            self._stopping.pop(attempt, None)
            ended.append(Ended(attempt=attempt, ending=message.ending))
        elif kind is _Started:
            self._on_running(message.attempt, message.pid, running)
        elif kind is _Holds:
            attempt = message.run.attempt
            self._named.add(attempt)
            if attempt not in self.held:
                order = message.run.order
                self.held[attempt] = Held(self.number, message.run.launch, order.cpus, None)
                self._keepers.adopted(self, attempt, message.run.launch)
            if message.pid:
                self._on_running(attempt, message.pid, running)
        elif kind is _Sized:
            attempt, memory = message.attempt, message.memory
            if attempt in self._keepers.limits:  # else it keeps its time limit too
                self._keepers.limits[attempt] = self._keepers.limits[attempt][0], memory
            self._keepers.on_sized(Sized(attempt=attempt, memory=memory, used=message.used, short=message.short))
        elif kind is _Unfit:
            self._trying = False
            self._keepers.on_fitness(message.why)
        elif kind is _Fed:
            self._keepers.heard(Fed(whose=message.whose, taken=message.taken, wanted=message.wanted))
        elif kind is _Said:
            self._keepers.heard(Said(name=message.name, stream=message.stream, data=message.data))
        elif kind is _Left:
            self._keepers.heard(Left(name=message.name, code=message.code, note=message.note))
        elif kind is _Whole:
            self._on_whole()

    def _on_running(self, attempt: Attempt, pid: int, running: list[Running]) -> None:
        held = self.held.get(attempt)
        if held is not None and held.running is None:
            now_running = Running(attempt=attempt, pid=pid, cpus=held.cpus)
            self.held[attempt] = held._replace(running=now_running)
            running.append(now_running)

    def _on_whole(self) -> None:
        """Send a keeper what is missing, once it has reported what it holds."""
        self.up = True
        self._dismissed = self._recalled = False
        for attempt, held in self.held.items():
            if attempt not in self._named:
                self._say(self._keepers.launched(held))
                continue
            if attempt in self._keepers.until:
                self.renew(attempt, self._keepers.until[attempt])
            if attempt in self._keepers.limits:
                self.limit(attempt, *self._keepers.limits[attempt])
            if attempt in self._keepers.paused:
                self.say("pause", attempt, self._keepers.paused[attempt])
        for attempt, hung in self._stopping.items():
            self._say(_encode(["stop", attempt, hung]) + b"\n")
        if self._forgotten:
            self._say(_encode(["forget", sorted(self._forgotten)]) + b"\n")
            self._forgotten.clear()
        self._named.clear()
        if self._trying:
            self._say(_TRY)
        if self._whole is not None and not self._whole.done():
            self._whole.set_result(None)

    def _say(self, line: bytes) -> None:
        """Queue a line. All lines of one turn of the loop are sent together."""
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(line)

    def _flush(self) -> None:
        if self._transport is not None and self._outbox:
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()

    # -- the keeper's lifecycle

    def _ensure(self) -> None:
        if self._transport is None and self._work is None and not self._keepers.closing:
            self._work = self._loop.create_task(self._bring_up())

    async def _bring_up(self) -> None:
        """Start a keeper and connect to it; return all attempts if that fails."""
        try:
            was_up = await self._brought_up()
        finally:
            self._work = None
        if was_up and self._transport is None and not self._keepers.closing:  # it was lost again meanwhile
            self._work = self._loop.create_task(self._after_loss())

    async def _brought_up(self) -> bool:
        why = ""
        for delay in (0.05, 0.2, 0.0):
            try:
                await self._spawn()
                await self._connect()
                return True
            except OSError as error:
                why = str(error) or type(error).__name__
            await asyncio.sleep(delay)
        self._return(f"no keeper could be started: {why}")
        return False

    async def _spawn(self) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            "-c",
            START,
            str(_PROGRAM),
            str(self._keepers.folder),
            self.name,
            env={"LC_ALL": "C.UTF-8"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await asyncio.wait_for(process.communicate(), _START_SECONDS)
        except (TimeoutError, asyncio.CancelledError):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        if process.returncode not in (0, 3):  # 3: the slot already has a keeper, which will do
            last = said.decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(last or f"it ended with code {process.returncode}")

    async def _connect(self) -> None:
        self._dismissed = self._recalled = False
        self._whole = self._loop.create_future()
        where = os.open(self._keepers.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{where}/{self.name}.sock")
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self.keeper = struct.unpack("3i", peer)[0]  # pid of the listener
            set_mark(self.keeper, self.mark)
            await self._loop.create_unix_connection(lambda: self, sock=connection)
        except BaseException:
            connection.close()
            raise
        finally:
            os.close(where)
        try:
            await asyncio.wait_for(self._whole, _START_SECONDS)
        finally:
            self._whole = None

    async def _after_loss(self) -> None:
        """Reconnect or clean up after the connection has ended: the keeper exited, was killed, or only the connection
        broke."""
        try:
            pauses = iter(_PAUSES)
            while not self._dismissed and await self._still_locked():  # it lives: its command is not lost
                with contextlib.suppress(OSError):
                    await self._connect()
                    if self._transport is not None:  # else it was lost again meanwhile
                        return
                await asyncio.sleep(next(pauses, _PAUSES[-1]))
            gone: dict[Attempt, Held] = {}
            if not self._dismissed:  # otherwise nothing has been sent to it since
                gone, self.held = self.held, {}
            self._dismissed = self._recalled = False
            await self._bury(gone)
        finally:
            self._work = None
        if self.held or self._trying:
            self._ensure()
        else:
            self._bury_if_empty()

    async def _still_locked(self) -> bool:
        """Return whether the keeper lives. Allow up to 40 ms for a dying one to exit."""
        for _ in range(20):
            if not self._locked():
                return False
            await asyncio.sleep(0.002)
        return True

    def _locked(self) -> bool:
        try:
            fd = os.open(self._keepers.folder / f"{self.name}.lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    async def _bury(self, gone: dict[Attempt, Held]) -> None:
        """End the remaining processes of a dead keeper, and report the ending of each of its attempts."""
        grave = Grave(
            self._keepers.folder, self._keepers.logs, self._keepers.spares, self.name, self._keepers.cgroup_parent
        )
        endings = await asyncio.to_thread(grave.clear, frozenset(gone))
        ended = []
        for attempt, ending in endings.items():
            if attempt in self._endings or attempt in self._forgotten:
                continue
            self._endings.add(attempt)
            self._keepers.adopted(self, attempt, None)
            ended.append(Ended(attempt=attempt, ending=ending))
        returned = Ending(outcome="returned", note="its keeper has ended")
        ended += [Ended(attempt=attempt, ending=returned) for attempt in gone if attempt not in endings]
        for attempt in gone:
            self._stopping.pop(attempt, None)
        self._keepers.changed([], ended)

    def _bury_if_empty(self) -> None:
        """Remove a dead keeper's files if no ending in them is still needed."""
        if self._endings or self.held or self._transport or self._work or self._locked():
            return
        self._forgotten.clear()
        for suffix in ("sock", "journal"):
            (self._keepers.folder / f"{self.name}.{suffix}").unlink(missing_ok=True)

    def _return(self, note: str) -> None:
        gone, self.held = self.held, {}
        self._stopping.clear()
        self._trying = False
        self._keepers.on_fitness(note)  # first: otherwise the returned attempts come back at once
        ending = Ending(outcome="returned", note=note)
        self._keepers.changed([], [Ended(attempt=attempt, ending=ending) for attempt in gone])


class Grave(NamedTuple):
    """The remains of a killed keeper: a journal, and perhaps a running command and unnamed output."""

    folder: Path
    logs: Path
    spares: str
    name: str
    cgroups: str = ""

    def clear(self, suspects: frozenset[Attempt]) -> dict[Attempt, Ending]:
        """End the running processes, and return the ending of every attempt that was started.

        `suspects` are attempts that the keeper may have started without reporting it. New endings are appended to the
        journal, so that they outlive this process too.
        """
        boot, endings, open_attempts = self.read()
        self._clear_cgroups()
        if boot == boot_id():
            for started in open_attempts.values():
                if started is not None:
                    _end_group(started.pid, started.ticks)
        mark = mark_of(f"{self.folder}/{self.name}")
        strays, left = end_orphans(f"{self.folder}/results/", lambda one: one in suspects or one in open_attempts, mark)
        lost = [attempt for attempt in open_attempts if attempt not in endings]
        lost += sorted(strays - set(endings) - set(lost))
        if lost:
            self._rescue_output(lost[-1])
            self._note(lost, left)
        return endings | dict.fromkeys(lost, _lost(left))

    def read(self) -> tuple[str, dict[Attempt, Ending], dict[Attempt, _Started | None]]:
        """Return the boot id of the journal, its unforgotten endings, and the attempts that started but did not end."""
        boot = ""
        endings: dict[Attempt, Ending] = {}
        begun: dict[Attempt, _Started | None] = {}
        for entry in journal_entries(self._journal()):
            match entry:
                case _Header():
                    boot = entry.boot
                case _Starting():
                    begun.setdefault(entry.attempt, None)
                case _Started():
                    begun[entry.attempt] = entry
                case _Ended():
                    begun.pop(entry.attempt, None)
                    endings[entry.attempt] = entry.ending
                case _Forgotten():
                    for attempt in entry.attempts:
                        endings.pop(attempt, None)
        return boot, endings, begun

    def _clear_cgroups(self) -> None:
        """Kill the processes in this keeper's cgroups, and remove the cgroups."""
        for place in Path(self.cgroups).glob(f"{self.name}.*") if self.cgroups else ():
            for _ in range(100):
                with contextlib.suppress(OSError):
                    for pid in (place / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                with contextlib.suppress(OSError):
                    place.rmdir()
                if not place.exists():
                    break
                time.sleep(0.005)

    def _journal(self) -> bytes:
        try:
            return (self.folder / f"{self.name}.journal").read_bytes()
        except OSError:
            return b""

    def _note(self, lost: list[Attempt], left: list[int]) -> None:
        text = b"\n"
        for attempt in lost:
            line = _encode(_Ended(attempt, _lost(left)))
            text += b"%08x %b\n" % (zlib.crc32(line), line)
        with contextlib.suppress(OSError), (self.folder / f"{self.name}.journal").open("ab") as file:
            file.write(text)

    def _rescue_output(self, attempt: Attempt) -> None:
        """Rename the last command's output if it was still in a spare file."""
        for suffix, path in zip(("out", "err"), log_paths(self.logs, attempt), strict=True):
            spare = Path(f"{self.spares}{self.name}.{suffix}")
            with contextlib.suppress(OSError):
                if spare.stat().st_size and not path.exists():
                    path.parent.mkdir(exist_ok=True)
                    spare.rename(path)


def journal_entries(text: bytes) -> Iterator[Any]:
    """Yield the entries with a valid checksum; skip a torn tail and damaged lines."""
    for line in text.split(b"\n"):
        if line[8:9] == b" " and line[:8] == b"%08x" % zlib.crc32(line[9:]):
            with contextlib.suppress(msgspec.DecodeError):
                yield _entries.decode(line[9:])


def end_orphans(results: str, mine: Callable[[Attempt], bool], mark: int = 0) -> tuple[set[Attempt], list[int]]:
    """Kill every process that has this mark, or whose environment names one of these attempts. Return the attempts that
    were named, and the processes that had not ended after `_BURY_SECONDS`.
    """

    def is_stray(pid: int, attempt: Attempt | None) -> bool:
        return _bears(pid, mark) or (attempt is not None and mine(attempt))

    found: set[Attempt] = set()
    until = time.monotonic() + _BURY_SECONDS
    while True:
        strays = [(pid, attempt) for pid, attempt in _processes(results) if is_stray(pid, attempt)]
        for pid, attempt in strays:
            if attempt is not None:
                found.add(attempt)
            _kill(pid, lambda pid=pid: is_stray(pid, _attempt_of(pid, results)))  # type: ignore[misc]
        if not strays or time.monotonic() > until:
            return found, sorted(pid for pid, _ in strays)
        time.sleep(0.005)


def mark_of(slot: str) -> int:
    """Return the mark that identifies processes of a slot's commands: a soft limit (RLIMIT_RTTIME) of the CPU time that
    a real-time thread may use without blocking, in microseconds: 70,000 years plus a hash.

    Every process inherits it, independently of its parent, session and environment. Setting it needs no privileges, and
    reading it takes one call. Only a process that sets this limit itself loses the mark.
    """
    return 1 << 61 | int.from_bytes(hashlib.blake2s(slot.encode(), digest_size=7).digest())


def set_mark(pid: int, mark: int) -> None:
    """Mark a keeper and all processes that it spawns from now on. Where a hard limit forbids it, processes are
    identified by their session and environment only; `poise doctor` reports that.
    """
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_RTTIME)
        resource.prlimit(pid, resource.RLIMIT_RTTIME, (mark, hard))


def _mark_on(pid: int) -> int:
    """Return the mark of a process, or another number. Root reads that of an account also without CAP_SYS_RESOURCE."""
    try:
        return resource.prlimit(pid, resource.RLIMIT_RTTIME)[0]
    except PermissionError:
        if os.geteuid() != 0:
            raise
    words = Path(f"/proc/{pid}/limits").read_text().partition("Max realtime timeout")[2].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else -1


def _bears(pid: int, mark: int) -> bool:
    """Return whether a live process has this mark. Another user's process can be checked and killed only by root."""
    try:
        marked = mark > 0 and _mark_on(pid) == mark
        return marked and Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def _processes(results: str) -> Iterator[tuple[int, Attempt | None]]:
    """Yield every process of this machine with the attempt that its environment names."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            yield int(entry.name), _attempt_of(int(entry.name), results)


def _attempt_of(pid: int, results: str) -> Attempt | None:
    """Return the attempt that the environment of a process names. One that runs as an account may name any."""
    wanted, environ = b"POISE_RESULT=" + os.fsencode(results), _environ(pid)
    if wanted not in environ or _is_of_another(pid):
        return None
    fields = dict(part.partition(b"=")[::2] for part in environ.split(b"\0"))
    with contextlib.suppress(ValueError, KeyError):
        if fields[b"POISE_RESULT"].startswith(os.fsencode(results)):
            return Attempt(fields[b"POISE_TASK"].decode(), int(fields[b"POISE_EPOCH"]))
    return None


def _is_of_another(pid: int) -> bool:
    """Return whether a process belongs to the account of a person, and this one to root."""
    try:
        return os.geteuid() == 0 and Path(f"/proc/{pid}").stat().st_uid >= LEAST_ID
    except OSError:
        return True


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _end_group(pid: int, ticks: int) -> None:
    """Kill the process group of a command, if its leader is the process in the journal."""

    def same() -> bool:
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return False
        return int(fields[19]) == ticks and ticks > 0

    if same():
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def _kill(pid: int, still: Callable[[], bool]) -> None:
    """Send SIGKILL to a process; check its identity first, through a pidfd, so that a reused pid is safe."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if still():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)


def _lost(left: Sequence[int]) -> Ending:
    """Return the ending of a lost attempt. `left` are processes that could not be killed."""
    note = f"; left-over processes could not be killed: {left}" if left else ""
    return Ending(outcome="lost", note="its keeper was killed" + note)


def account_of(launch: Launch) -> str:
    """Return the account as which an attempt runs; empty: the user of its agent."""
    return launch.shape.where.account


def output_path(launch: Launch, folder: str) -> str:
    """Return the user-named output file of an attempt, below its folder; "" if there is none."""
    if not launch.output:
        return ""
    job, _, task = launch.attempt.task.partition(".")
    number = launch.rank if launch.gang else launch.part
    stands = {"%%": "%", "%j": job, "%t": task, "%r": str(number), "%a": str(launch.attempt.epoch)}
    return str(Path(folder or "/") / re.sub("%.", lambda sign: stands.get(sign[0], sign[0]), launch.output))


def orders_path(result: str) -> str:
    """Return the file with the orders of a member of an elastic gang, beside the file for its result."""
    return result.removesuffix(".json") + ".orders"


def _progress(result: str) -> str:
    """Return the file by which a command reports progress, beside the file for its result."""
    return result.removesuffix(".json") + ".progress"
