"""The real control plane, with one planted death: `python dying.py STEP COUNT HOME [options …]`.

It kills itself (SIGKILL) when it comes to STEP for the COUNT-th time. The steps are those that an event passes on its
way from a message to the outside. Checkpoints are taken every few events, so that each step also falls around one.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from poise.control import __main__ as control
from poise.control.plane import Plane
from poise.drivers.sqlite import tables
from poise.drivers.sqlite.mark import Mark
from poise.drivers.sqlite.store import SqliteStore
from poise.drivers.sqlite.writer import SqliteWriter
from poise.kernel.controller import Settings
from poise.kernel.ledger import Ledger

Around = Callable[[Callable[..., Any]], Callable[..., Any]]


class Death:
    """Counts, and strikes."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.1)  # on the log's own thread: what is promised too early gets out meanwhile, and is caught
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*arguments: Any, **named: Any) -> Any:
            self()
            return inner(*arguments, **named)

        return dying

    def after(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*arguments: Any, **named: Any) -> Any:
            result = inner(*arguments, **named)
            self()
            return result

        return dying


def _between(death: Death) -> None:
    """In the middle of a transaction: its rows are written, its COMMIT is not."""
    inner = tables.transaction

    def dying(connection: Any) -> Any:
        class Connection:
            def __getattr__(self, name: str) -> Any:
                return getattr(connection, name)

            def execute(self, statement: str, *parameters: Any) -> Any:
                if statement == "COMMIT":
                    death()
                return connection.execute(statement, *parameters)

        stand_in: Any = Connection()
        return inner(stand_in)

    setattr(tables, "transaction", dying)  # noqa: B010 — a planted death is no assignment a type checker should follow


def _at(owner: Any, name: str, around: str) -> Callable[[Death], None]:
    def plant(death: Death) -> None:
        setattr(owner, name, getattr(death, around)(getattr(owner, name)))

    return plant


STEPS: dict[str, Callable[[Death], None]] = {
    "before-apply": _at(Ledger, "apply", "before"),
    "after-apply": _at(Ledger, "apply", "after"),
    "before-append": _at(SqliteStore, "append", "before"),
    "after-append": _at(SqliteStore, "append", "after"),
    "before-transaction": _at(SqliteWriter, "append", "before"),
    "before-commit": _between,
    "after-commit": _at(Mark, "write", "before"),
    "after-mark": _at(Mark, "write", "after"),
    "before-outbox": _at(Plane, "_on_durable", "before"),
    "after-outbox": _at(Plane, "_on_durable", "after"),
    "in-effects": _at(Plane, "_published_up_to", "before"),
    "before-checkpoint": _at(SqliteWriter, "add_checkpoint", "before"),
    "in-checkpoint": _at(tables, "insert_checkpoint", "after"),
    "after-checkpoint": _at(SqliteWriter, "add_checkpoint", "after"),
}


if __name__ == "__main__":
    vars(control)["Settings"] = partial(Settings, checkpoint_every=20)
    STEPS[sys.argv[1]](Death(int(sys.argv[2])))
    del sys.argv[1:3]
    sys.exit(control.main())
