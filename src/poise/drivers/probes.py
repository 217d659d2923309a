"""Discovery of this machine's accelerators: one probe per vendor, and the probes of installed packages.

A probe queries a driver's library or tool. Drivers hang; tools are missing, print warnings before their answer, or
print garbage. None of that may stop or delay the agent. So every probe runs in its own thread and must answer within
`ANSWER_SECONDS` (for device use: `USE_SECONDS`). A tool is killed after `TOOL_SECONDS` and may print `MAX_OUTPUT`
bytes. A probe that has not returned is not queried again until it has. For `PATIENCE` checks, a failed driver keeps its
last known devices: one failure of a tool must not end the work on its devices.

Installed packages offer probes as entry points of the group `poise.probes`, each an object that implements `Probe`.
"""

import contextlib
import json
import logging
import os
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from poise.model.messages import DeviceFault
from poise.model.resources import MAX_DEVICES, MAX_TEXT, Device
from poise.model.usage import UNKNOWN

GROUP = "poise.probes"

ANSWER_SECONDS = 8.0
"""Time limit for all probes together, since they run concurrently; joining the fleet may wait for it."""

USE_SECONDS = 0.5
"""Time limit for device use, which is queried every second; a later answer is used the next time."""

TOOL_SECONDS = 5.0
MAX_OUTPUT = 4 * 2**20
PATIENCE = 3

_log = logging.getLogger("poise.probes")


class Use(NamedTuple):
    """Use of a device in the driver's last sampling period, in thousandths, and its used memory in bytes; the
    thousandths of that time in which its memory was read or written, and its power in milliwatts (-1: unknown).
    """

    busy: int
    memory: int
    bandwidth: int = UNKNOWN
    power: int = UNKNOWN


class Finding(NamedTuple):
    """The result of one probe: its devices, each with its driver's number as `index`, or why there are none.

    `driver` is the driver's version. `failed` means that a driver exists but does not answer correctly.
    """

    devices: tuple[Device, ...] = ()
    why_none: str = ""
    driver: str = ""
    failed: bool = False


class Probe(Protocol):
    """Queries one driver. `name` is what it queries, `hint` the fix if that is missing, and `rest` the minimum seconds
    between two queries of device use, since starting a tool every second would be expensive.

    Both functions may be slow, fail, or return wrong data; the caller handles that. `use` takes the driver's numbers.
    """

    name: str
    hint: str
    rest: float

    def find(self) -> Finding: ...
    def use(self, indices: Sequence[int]) -> dict[int, Use]: ...


@runtime_checkable
class TellsFaults(Protocol):
    """A probe that also reports devices that have failed since its last call, by the driver's numbers. Its first call
    starts listening. It does not block, and is called every second.
    """

    def faults(self) -> Sequence[DeviceFault]: ...


class Answer(NamedTuple):
    """The answer of one probe."""

    probe: Probe
    finding: Finding


class Accelerators:
    """The accelerators of this machine, probed periodically.

    On the node they are numbered from 0 in the order of the probes; `driver_index` is their driver's number where it
    differs.
    """

    def __init__(self, probes: Sequence[Probe] | None = None) -> None:
        self._asked = [_Asked(probe) for probe in (shipped_and_installed() if probes is None else probes)]
        self._owners: dict[int, tuple[_Asked, int]] = {}

    def look(self) -> list[Answer]:
        """Return every probe's answer, with the devices as this node numbers them."""
        deadline = time.monotonic() + ANSWER_SECONDS
        for asked in self._asked:
            asked.begin()
        answers: list[Answer] = []
        owners: dict[int, tuple[_Asked, int]] = {}
        for asked in self._asked:
            finding = asked.end(deadline)
            numbered = []
            for device in finding.devices:
                index = len(owners)
                if index == MAX_DEVICES:
                    break
                owners[index] = (asked, device.index)
                own = None if index == device.index else device.index
                model = device.model.replace("@", " ")[:MAX_TEXT]  # profiles are keyed by `class@model`
                numbered.append(msgspec.structs.replace(device, index=index, driver_index=own, model=model))
            answers.append(Answer(asked.probe, finding._replace(devices=tuple(numbered))))
        self._owners = owners
        return answers

    def use(self, indices: Iterable[int]) -> dict[int, Use]:
        """Return the use of devices by their index on the node, except for those without a new measurement."""
        wanted: dict[_Asked, dict[int, int]] = {}
        for index in indices:
            if index in self._owners:
                asked, own = self._owners[index]
                wanted.setdefault(asked, {})[own] = index
        return {
            numbers[own]: one
            for asked, numbers in wanted.items()
            for own, one in asked.use(sorted(numbers)).items()
            if own in numbers
        }

    def faults(self) -> list[DeviceFault]:
        """Return the devices that have failed since the last call, by their index on the node."""
        numbers = {of: index for index, of in self._owners.items()}
        return [
            msgspec.structs.replace(fault, index=numbers[asked, fault.index])
            for asked in dict.fromkeys(asked for asked, _ in self._owners.values())
            for fault in asked.faults()
            if (asked, fault.index) in numbers
        ]


def why_none(answers: Sequence[Answer]) -> str:
    """Return why a node has no devices: all failing probes, or else what the first probe lacks."""
    failing = [f"{answer.probe.name}: {answer.finding.why_none}" for answer in answers if answer.finding.failed]
    return "; ".join(failing) or next((answer.finding.why_none for answer in answers), "nothing looks for them")


def shipped_and_installed() -> list[Probe]:
    """Return the probes of Poise, then those of installed packages in order of their names."""
    from poise.drivers.amd import AmdSmi
    from poise.drivers.ascend import NpuSmi
    from poise.drivers.nvidia import Nvml

    found: list[Probe] = [Nvml(), NpuSmi(), AmdSmi()]
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        try:
            probe = point.load()
            good = isinstance(probe.name, str) and isinstance(probe.hint, str) and isinstance(probe.rest, int | float)
            if not (good and callable(probe.find) and callable(probe.use)):
                raise TypeError("it is no probe: `name`, `hint`, `rest`, `find` and `use` make one")
        except Exception as error:  # importing a plug-in may raise anything
            probe = _Unusable(point.name, f"it cannot be loaded: {type(error).__name__}: {error}")
        found.append(probe)
    return found


# --- querying tools --------------------------------------------------------------------------------------------------


class NoAnswerError(Exception):
    """A tool gave no usable answer. `absent` means that it is not installed."""

    def __init__(self, why: str, *, absent: bool = False) -> None:
        super().__init__(why)
        self.absent = absent

    def finding(self) -> Finding:
        return Finding(why_none=str(self), failed=not self.absent)


def ask(*command: str, seconds: float = TOOL_SECONDS, most: int = MAX_OUTPUT) -> str:
    """Return a tool's output. Raises `NoAnswerError` if it is missing, takes too long, prints too much, or fails."""
    program = shutil.which(command[0])
    if program is None:
        raise NoAnswerError(f"`{command[0]}` is not installed", absent=True)
    shown = " ".join(command)
    try:
        process = subprocess.Popen(  # noqa: S603 — the tool that its driver brings
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        raise NoAnswerError(f"`{shown}` cannot be run: {error.strerror}") from None
    try:
        text = _read(process, time.monotonic() + seconds, most)
    finally:
        _end(process)
    if text is None:
        raise NoAnswerError(f"`{shown}` has not answered within {seconds:g} s")
    if len(text) > most:
        raise NoAnswerError(f"`{shown}` prints more than {most >> 10} KiB")
    if process.returncode:
        raise NoAnswerError(f"`{shown}` ended with {process.returncode}")
    return text.decode(errors="replace")


def parse_json(text: str) -> Any:
    """Return the JSON value in a tool's output, after any warnings. Raises `NoAnswerError`."""
    starts = [at for at, sign in enumerate(text) if sign in "[{" and (at == 0 or text[at - 1] == "\n")]
    for start in starts[:8]:
        try:
            return json.JSONDecoder().raw_decode(text[start:])[0]
        except (ValueError, RecursionError):
            continue
    raise NoAnswerError("its answer is not JSON")


def _read(process: "subprocess.Popen[bytes]", deadline: float, most: int) -> bytes | None:
    """Read its output until it exits, or slightly more than `most`; return None if it has not ended by the deadline."""
    pipe, text = process.stdout, bytearray()
    if pipe is None:
        return b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(text) <= most:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return None
            piece = os.read(pipe.fileno(), 65536)
            if not piece:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    return None
                break
            text += piece
    return bytes(text)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()  # a hung driver may block it for ever: then this probe is not queried again
    if process.stdout is not None:
        process.stdout.close()


# --- inside ----------------------------------------------------------------------------------------------------------


class _Asked:
    """A probe with its threads, its last answers and its failures."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._thread: threading.Thread | None = None
        self._answer: Finding | None = None
        self._good: Finding | None = None
        self._failures = 0
        self._told = ""
        self._using: threading.Thread | None = None
        self._used: dict[int, Use] = {}
        self._rests_until = 0.0
        self._telling: threading.Thread | None = None
        self._faults: list[DeviceFault] = []

    def begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._answer = None
            self._thread = threading.Thread(target=self._ask, name=f"probe {self.probe.name}", daemon=True)
            self._thread.start()

    def end(self, deadline: float) -> Finding:
        """Return its findings; while it fails, return the last good ones for a limited number of checks."""
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        finding = self._answer or Finding(why_none=f"it has not answered within {ANSWER_SECONDS:g} s", failed=True)
        if not finding.failed:
            self._good, self._failures, self._told = finding, 0, ""
            return finding
        self._failures += 1
        if finding.why_none != self._told:
            self._told = finding.why_none
            _log.warning("%s: %s", self.probe.name, finding.why_none)
        patient = self._good is not None and self._failures <= PATIENCE
        return self._good if patient and self._good is not None else finding

    def use(self, indices: Sequence[int]) -> dict[int, Use]:
        """Return measurements since the last call; wait for at most `USE_SECONDS`."""
        idle = self._using is None or not self._using.is_alive()
        if idle and not self._used and time.monotonic() >= self._rests_until:
            self._rests_until = time.monotonic() + self.probe.rest
            self._using = threading.Thread(
                target=self._ask_use, args=(indices,), name=f"use {self.probe.name}", daemon=True
            )
            self._using.start()
        if self._using is not None:
            self._using.join(USE_SECONDS)
        used, self._used = self._used, {}
        return used

    def faults(self) -> list[DeviceFault]:
        """Return faults since the last call; wait for at most `USE_SECONDS`."""
        if not isinstance(self.probe, TellsFaults):
            return []
        if not self._faults and (self._telling is None or not self._telling.is_alive()):
            self._telling = threading.Thread(
                target=self._ask_faults, args=(self.probe,), name=f"faults {self.probe.name}", daemon=True
            )
            self._telling.start()
        if self._telling is not None:
            self._telling.join(USE_SECONDS)
        faults, self._faults = self._faults, []
        return faults

    def _ask_faults(self, probe: TellsFaults) -> None:
        try:
            self._faults = list(probe.faults())
        except Exception as error:  # a plug-in may raise anything; then there are no faults
            _log.debug("%s: %s", self.probe.name, error)

    def _ask_use(self, indices: Sequence[int]) -> None:
        try:
            self._used = dict(self.probe.use(indices))
        except Exception as error:  # a plug-in may raise anything; then there is no measurement
            _log.debug("%s: %s", self.probe.name, error)

    def _ask(self) -> None:
        try:
            found = self.probe.find()
            self._answer = Finding(tuple(found.devices), str(found.why_none), str(found.driver), bool(found.failed))
        except Exception as error:  # a probe that fails is reported like a driver that fails
            self._answer = Finding(why_none=f"{type(error).__name__}: {error}", failed=True)


class _Unusable:
    """A stand-in for a package's probe that cannot be loaded."""

    hint = "install its package again, or remove it"
    rest = 0.0

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        self._problem = problem

    def find(self) -> Finding:
        return Finding(why_none=self._problem, failed=True)

    def use(self, indices: Sequence[int]) -> dict[int, Use]:
        return {}
