"""The process that watches a gateway, told to end again and again while it ends."""

import subprocess
import sys
import textwrap

ENDED = """
    import os, signal, sys, time
    from poise_serve.parent import Watched, hold_signals, listen_to_signals, stand_by

    def watch() -> int:
        outcome = stand_by(print)
        if not isinstance(outcome, Watched):
            return outcome
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        listen_to_signals()
        time.sleep(30)
        return 1

    hold_signals()
    for _ in range(25):
        if not (watching := os.fork()):
            sys.exit(watch())
        ended = 0
        while not ended:
            os.kill(watching, signal.SIGTERM)
            time.sleep(0.0002)  # faster than they are handled, signals would pile up in their handler
            ended, status = os.waitpid(watching, os.WNOHANG)
        if code := os.waitstatus_to_exitcode(status):
            sys.exit(f"ended with {code}")
"""


def test_a_signal_to_end_that_comes_while_it_ends_changes_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ENDED)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
