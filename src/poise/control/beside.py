"""A process that works beside the control plane: at low priority, with its own lock, until SIGTERM or SIGINT."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from poise.drivers.lock import take_lock
from poise.drivers.messages import Seldom
from poise.drivers.system import give_way
from poise.errors import PoiseError


class Stop(NamedTuple):
    """A request to stop: `asked` returns whether a signal has arrived, and `wake` is readable from then on."""

    asked: Callable[[], bool]
    wake: int


def run_beside(lock: Path, what: str, log: str, work: Callable[[Stop], None]) -> int:
    """Run `work` while holding `lock`, whose holder is described as `what`, and log errors to `log`. Return the exit
    code.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(Seldom())
    os.umask(0o077)
    give_way()
    asked = False

    def stop(*_: object) -> None:
        nonlocal asked
        asked = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    wakeup, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    try:
        with take_lock(lock, what):
            work(Stop(lambda: asked, wakeup))
    except PoiseError as error:
        logging.getLogger(log).error("%s: %s; %s", error.record.code, error, error.record.hint)
        return error.exit_code
    return 0
