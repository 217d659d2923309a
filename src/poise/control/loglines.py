"""Lines of running work whose templates are new for its program: found in what it writes, and recorded.

Outputs come to the home as they are written. Every few seconds the end of some of them is read beside the loop: those
of attempts that run, in turns, and of each only what is new. That is a sample, so that a fleet that writes much costs
the control plane no more than one that writes little. What is found goes into the log, from which incidents are read.
What is usual is learned anew when a control plane begins to lead.
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
"""Seconds between two looks."""

MOST_UNITS, MOST_TASKS = 64, 64
"""Units that are looked at in one look, and tasks."""

MOST_LINES, MOST_BYTES = 128, 16 << 10
"""Lines that are read in one look, and bytes of one output: its end, where it has grown by more."""

MOST_PLACES = 4096
"""Outputs of which it is known how far they were read."""

MOST_TEXT = 160

_log = logging.getLogger("poise.control")


class _Output(NamedTuple):
    """One of the two outputs of an attempt of a program."""

    attempt: Attempt
    program: str
    path: Path


class Loglines:
    """Reads what the work of one control plane writes. All of it is called on the loop's thread."""

    def __init__(self, plane: Plane, logs: Path) -> None:
        self._plane, self._logs = plane, logs
        self._novelty = Novelty()
        self._read_to: dict[Path, int] = {}
        self._turn = 0

    async def run(self) -> None:
        """Look now and then, until this is cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            if self._plane.behind is not None:
                self._novelty, self._read_to = Novelty(), {}
                continue
            try:
                await self.look()
            except Exception:  # whatever happens here, the fleet goes on
                _log.exception("outputs of running work could not be read")

    async def look(self) -> None:
        """Read what some of the running attempts have written since they were looked at last."""
        for noticed in await asyncio.to_thread(self._read, self._outputs()):
            self._plane.post(messages.Saw(noticed))

    def _outputs(self) -> list[_Output]:
        """Those whose turn it is."""
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
        """On a thread. One program tells one new line in a look."""
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
        """Whole lines that were not read yet."""
        try:
            size = path.stat().st_size
        except OSError:  # nothing was written, or it is gone
            return []
        known = self._read_to.pop(path, 0)
        known = known if known <= size else 0  # it was cut short, and begins again
        start, data = piece(path, max(known, size - MOST_BYTES), MOST_BYTES)
        whole, newline, _ = data.rpartition(b"\n")
        self._read_to[path] = start + len(whole) + len(newline)
        if len(self._read_to) > MOST_PLACES:
            del self._read_to[next(iter(self._read_to))]
        lines = whole.split(b"\n")
        if start > known:  # the first one is the end of a line
            del lines[0]
        return [plain(line.decode(errors="replace")) for line in lines if line.strip()]
