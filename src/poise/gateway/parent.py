"""A process that outlives a gateway: it keeps what listens, and starts another when the gateway is killed.

It does nothing else, so that nothing of what gateways die of reaches it: neither what clients send, nor their number,
nor memory. Whoever connects while no gateway is there waits for the next, a moment later; replicas dial again
(`replica`), and their jobs are taken over by what is on file (`replicas`).
"""

import ctypes
import faulthandler
import os
import signal
import time
from collections.abc import Callable

QUICKLY = 5.0
"""Seconds: a gateway that is killed before it has lived for so long …"""

AT_MOST = 3
"""… so many times in a row is not started again."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stand_by(say: Callable[[str], None]) -> int | None:
    """Goes on as two processes. Returns nothing in the one that is to serve; in the other the exit code once that has
    ended, however often it had to be started again. Signals to end are passed on; in the one that is to serve they wait
    until it says `listen_to_signals`. To be called before there are threads.
    """
    told: list[int] = []
    child = 0

    def pass_on(number: int, _: object) -> None:
        told.append(number)
        if child:
            os.kill(child, number)

    parent, quick = os.getpid(), 0
    before = [(number, signal.signal(number, pass_on)) for number in _SIGNALS]
    while True:
        began = time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        child = os.fork()
        if not child:
            for number, handler in before:
                signal.signal(number, handler)
            faulthandler.enable()  # what it was at, if native code ends it
            _belong_to(parent)
            return None
        early = list(told)
        listen_to_signals()
        for one in early:
            os.kill(child, one)
        _, status = os.waitpid(child, 0)
        child = 0
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        quick = quick + 1 if time.monotonic() - began < QUICKLY else 0
        name = signal.Signals(-code).name
        if told or quick >= AT_MOST:
            return 128 - code
        say(f"the gateway was ended by {name}; another takes over")


def listen_to_signals() -> None:
    """What came to end it since it began comes now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _belong_to(parent: int) -> None:
    """Be told to end when the parent is gone (prctl(2), PR_SET_PDEATHSIG), and by a terminal only through it."""
    set_death_signal = 1
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


__all__ = ["listen_to_signals", "stand_by"]
