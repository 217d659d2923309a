"""Finds log lines whose template is new for their program, and records them.

Output arrives in the home as it is written. Every few seconds the end of some outputs of running attempts is read
beside the loop: attempts in turn, and only new output. This is a sample, so a fleet that writes much costs the control
plane no more than one that writes little. Findings go into the log, from which incidents are derived. Known templates
are learned again whenever a control plane begins to lead.
"""

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from poise.control.plane import Plane
from poise.drivers.logs import piece
from poise.drivers.outputs import plain
from poise.drivers.places import log_paths
from poise.kernel import messages
from poise.kernel.ledger import attempt_of
from poise.kernel.templates import Novelty
from poise.model.events import Noticed
from poise.model.messages import Attempt

EVERY = 10.0
"""Seconds between two reads."""

MOST_UNITS, MOST_TASKS = 64, 64
"""Maximum number of units, and of tasks, per read."""

MOST_LINES, MOST_BYTES = 128, 16 << 10
"""Maximum number of lines per read, and of bytes per output; of a longer output, only its end is read."""

MOST_PLACES = 4096
"""Number of outputs whose read position is remembered."""

MOST_TEXT = 160

_log = logging.getLogger("poise.control")


class _Output(NamedTuple):
    """One of the two output streams of an attempt of a program."""

    attempt: Attempt
    program: str
    path: Path


class Loglines:
    """Reads the output of one control plane's work. Call all methods on the loop's thread."""

    def __init__(self, plane: Plane, logs: Path) -> None:
        self._plane, self._logs = plane, logs
        self._novelty = Novelty()
        self._read_to: dict[Path, int] = {}
        self._turn = 0

    async def run(self) -> None:
        """Read periodically until this is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            if self._plane.behind is not None:
                self._novelty, self._read_to = Novelty(), {}
                continue
            try:
                await self.look()
            except Exception:  # no error here may stop the fleet
                _log.exception("outputs of running work could not be read")

    async def look(self) -> None:
        """Read new output of some of the running attempts."""
        for noticed in await asyncio.to_thread(self._read, self._outputs()):
            self._plane.post(messages.Saw(noticed))

    def _outputs(self) -> list[_Output]:
        """Return the outputs whose turn it is."""
        active = self._plane.ledger.active
        if self._turn >= len(active):
            self._turn = 0
        found: list[_Output] = []
        for unit in islice(active.values(), self._turn, self._turn + MOST_UNITS):
            self._turn += 1
            running = [index for index, task in enumerate(unit.tasks) if task.status == "running"]
            for attempt in (attempt_of(unit, index) for index in running[:MOST_TASKS]):
                found += (_Output(attempt, unit.spec.kind, path) for path in log_paths(self._logs, attempt))
            if len(found) >= 2 * MOST_TASKS:
                break
        return found

    def _read(self, outputs: Sequence[_Output]) -> list[Noticed]:
        """Return the new lines, at most one per program. Runs on a thread."""
        found: dict[str, Noticed] = {}
        left = MOST_LINES
        for output in outputs:
            for line in self._lines(output.path)[-left:] if left else ():
                left -= 1
                if text := self._novelty.take(output.program, line):
                    task = output.attempt.task
                    told = f"{task} writes a line that is new for {output.program}: {text[:MOST_TEXT]}"
                    found.setdefault(output.program, Noticed(at=0, kind="new-template", subject=task, text=told))
        return list(found.values())

    def _lines(self, path: Path) -> list[str]:
        """Return the complete lines that were not read yet."""
        try:
            size = path.stat().st_size
        except OSError:  # nothing was written, or the file was removed
            return []
        known = self._read_to.pop(path, 0)
        known = known if known <= size else 0  # the file was truncated: read from its start
        start, data = piece(path, max(known, size - MOST_BYTES), MOST_BYTES)
        whole, newline, _ = data.rpartition(b"\n")
        self._read_to[path] = start + len(whole) + len(newline)
        if len(self._read_to) > MOST_PLACES:
            del self._read_to[next(iter(self._read_to))]
        lines = whole.split(b"\n")
        if start > known:  # the first line is only the end of one
            del lines[0]
        return [plain(line.decode(errors="replace")) for line in lines if line.strip()]
