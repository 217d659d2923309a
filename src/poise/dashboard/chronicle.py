"""The past of a home, for pages: a thread follows the log while there are requests.

It keeps the timeline, the latest rounds, the progress of training, and a few states of the ledger from which past
moments are quickly reached. It reads the log as `poise timeline` does and sends no requests to the control plane.
Callers leave out data that a token may not see (`poise.dashboard.past`).
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple, TypeVar

from poise.config import Home
from poise.drivers.logfile import has_log, read_home
from poise.drivers.past import LogWithPast, Moment, Past, start_at, state_at
from poise.drivers.system import boot_id
from poise.drivers.verified import VerifiedLog
from poise.engine.host import ledger_at
from poise.errors import Busy, Conflict, NotFound, PoiseError, StoreDamaged
from poise.kernel.courses import Courses
from poise.kernel.decided import Rounds
from poise.kernel.ledger import Ledger
from poise.kernel.slices import Slices
from poise.model.events import Event, decode_event
from poise.ports import StoredCheckpoint

Answer = TypeVar("Answer")

AGAIN = 0.2
"""Seconds between two checks for new events at the end of the log."""

LINGER = 120.0
"""Seconds after the last request for which the log is followed."""

PATIENCE = 3.0
"""Maximum seconds that a request waits for the log to be read; then it gets an error with the progress."""

AT_ONCE = 500
"""Maximum number of events applied without releasing the lock to requests."""

BREATH = 0.001
"""Seconds of sleep between two such batches, for other threads."""

WAYPOINTS, FIRST_EVERY = 24, 20_000
"""Maximum number of states kept, and the revisions between two; the distance doubles whenever there are too many."""


class Book(Slices):
    """The timeline, the rounds and the progress of training, from one pass over the log."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.rounds = Rounds(ledger)
        self.courses = Courses()

    def add(self, event: Event) -> None:
        super().add(event)
        self.rounds.note(event)
        self.courses.note(event)

    @property
    def now(self) -> int:
        """The current instant of the log's clock."""
        return self.ledger.leader.resume_at(boot_id(), time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.time())


class _Waypoint(NamedTuple):
    stored: StoredCheckpoint
    wall: float


class Chronicle:
    """Follows the log of one home. Thread-safe."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._changed = threading.Condition()
        self._book: Book | None = None
        self._waypoints: list[_Waypoint] = []
        self._every = FIRST_EVERY
        self._last = 0
        self._is_whole = False
        """Whether the end of the log was reached."""
        self._is_complete = False
        """Whether the book begins where the log does."""
        self._asked = 0.0
        self._thread: threading.Thread | None = None
        self._trouble: PoiseError | None = None

    def ask(self, question: Callable[[Book], Answer]) -> Answer:
        """Answer a question from the current state of the log. Raises `Busy` during the first pass over the log, and an
        error if the log is damaged.
        """
        self._check()
        with self._changed:
            self._asked = time.monotonic()
            if self._thread is None:
                self._is_whole, self._trouble = False, None
                self._thread = threading.Thread(target=self._run, name="chronicle", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._is_whole or self._thread is None, PATIENCE)
            if self._thread is None and self._trouble is not None:
                raise self._trouble
            if self._book is None or not self._is_whole:
                have = self._book.ledger.revision if self._book is not None else 0
                raise Busy("the log is being read", have=f"{have:,} of {self._last:,} records", hint="wait")
            return question(self._book)

    def at(self, moment: Moment) -> Past:
        """Return the state at a past moment, from the nearest kept one. Raises `NotFound` for a moment that is no
        longer in the log.
        """
        self._check()
        with self._changed:
            near = [one for one in self._waypoints if _is_before(one, moment)]
        with closing(read_home(self._home, decode_event)) as log:
            return state_at(_Near(log, near[-1].stored) if near else log, moment)

    def _check(self) -> None:
        if self._home.elsewhere is not None:
            raise Conflict(
                "the past is read from the log, which belongs to the owner of the control plane",
                field=self._home.elsewhere_by,
                have=str(self._home.elsewhere),
                hint="`poise dashboard` of the owner shows it",
            )
        if not has_log(self._home):
            raise NotFound("there is no log", field=str(self._home.root), hint="`poise run -- echo hello`")

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with closing(read_home(self._home, decode_event)) as log:
                self._take_in(log)
                while self._is_wanted():
                    time.sleep(AGAIN)
                    self._take_in(log)
        except PoiseError as error:
            self._trouble = error
        except (AssertionError, LookupError, TypeError, ValueError) as error:  # records that are inconsistent
            what = f"{type(error).__name__}: {error}"
            self._trouble = StoreDamaged("the records of this log do not follow from each other", have=what[:200])
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()

    def _is_wanted(self) -> bool:
        with self._changed:
            return time.monotonic() - self._asked < LINGER

    def _take_in(self, log: VerifiedLog[Event]) -> None:
        """Read to the end of the log: first from its latest checkpoint, so that recent timelines need not wait, then
        the older part.
        """
        with self._changed:
            self._last = log.last_revision()
            book = self._book
            if book is None or not log.first_revision() - 1 <= book.ledger.revision <= self._last:
                book = self._book = Book(ledger_at(log.latest_checkpoint(), log.written_by))
                self._waypoints, self._every = [], FIRST_EVERY
                self._is_complete = book.ledger.revision == start_at(log, Moment()).revision
        self._follow(book, log)
        with self._changed:
            self._is_whole = True
            self._changed.notify_all()
        if not self._is_complete:
            self._complete(book, log)

    def _follow(self, book: Book, log: VerifiedLog[Event]) -> None:
        events = log.read(book.ledger.revision)
        while some := list(zip(range(AT_ONCE), events, strict=False)):
            with self._changed:
                for _, (_, event) in some:
                    book.add(event)
                if self._is_complete:
                    self._note_state(book.ledger)

    def _complete(self, recent: Book, log: VerifiedLog[Event]) -> None:
        """Replace the recent book by one from the first record on; the recent one is kept current meanwhile."""
        book = Book(start_at(log, Moment()))
        events = log.read(book.ledger.revision)
        while some := list(zip(range(AT_ONCE), events, strict=False)):
            for _, (_, event) in some:
                book.add(event)
            with self._changed:
                self._note_state(book.ledger)
            self._follow(recent, log)
            if not self._is_wanted():
                return
            time.sleep(BREATH)
        with self._changed:
            self._book, self._is_complete = book, True

    def _note_state(self, ledger: Ledger) -> None:
        last = self._waypoints[-1].stored.revision if self._waypoints else 0
        if ledger.revision < last + self._every:
            return
        stored = StoredCheckpoint(ledger.revision, ledger.compressed())
        self._waypoints.append(_Waypoint(stored, ledger.leader.wall(ledger.now)))
        if len(self._waypoints) > WAYPOINTS:
            del self._waypoints[::2]
            self._every *= 2


class _Near:
    """A log with one more known state beside its own checkpoints."""

    def __init__(self, log: LogWithPast, stored: StoredCheckpoint) -> None:
        self._log, self._stored = log, stored
        self.first_revision, self.read, self.written_by = log.first_revision, log.read, log.written_by
        self.latest_checkpoint = log.latest_checkpoint

    def checkpoints(self) -> Iterator[StoredCheckpoint]:
        yield self._stored


def _is_before(waypoint: _Waypoint, moment: Moment) -> bool:
    return waypoint.stored.revision <= moment.revision if moment.revision else waypoint.wall <= moment.wall
