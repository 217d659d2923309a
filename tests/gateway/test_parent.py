"""The process that watches a gateway, told to end again and again while it ends."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ENDED = """
    import os, signal, sys, time
    from pathlib import Path
    from poise_serve.parent import Watched, hold_signals, listen_to_signals, stand_by

    def watch() -> int:
        outcome = stand_by(print, Path("none"))
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


DRAINS = """
    import os, signal, sys
    from pathlib import Path
    from poise_serve.parent import Watched, Watchers, hold_signals, note_ending, stand_by

    record, watched_anew = Path(sys.argv[1]), sys.argv[2] == "anew"
    hold_signals()
    outcome = stand_by(lambda said: print(said, file=sys.stderr), record)
    if not isinstance(outcome, Watched):
        sys.exit(outcome)
    with record.with_suffix(".begun").open("a") as begun:
        begun.write("x")
    if watched_anew:
        import socket
        os.kill(os.getppid(), signal.SIGKILL)
        os.read(outcome.gone, 1)
        lock = os.open(record.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        Watchers(outcome, socket.create_server(("127.0.0.1", 0)), lock, record).start()
    note_ending(record)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("watcher", ["first", "anew"])
def test_a_gateway_that_is_killed_while_it_drains_is_not_started_again(tmp_path: Path, watcher: str) -> None:
    record = tmp_path / "0a1b2c3d.gateway"
    record.write_text(json.dumps({"port": 1}))
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRAINS), str(record), watcher],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == (128 + signal.SIGKILL if watcher == "first" else -signal.SIGKILL)
    assert ended.stderr == "", "all its processes have ended, and none said that another takes over"
    assert (tmp_path / "0a1b2c3d.begun").read_text() == "x"
    assert record.exists() == (watcher == "first"), "the process that was started removes it itself"
