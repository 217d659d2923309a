"""The files that killed gateways leave behind."""

import fcntl
import os
import time
from pathlib import Path

from poise.drivers import sockets
from poise_serve.serve import STALE, _sweep


def test_only_the_notes_of_gateways_that_nobody_takes_over_are_removed(tmp_path: Path) -> None:
    for name in ("m.aaaa", "m.bbbb"):
        sockets.listen(tmp_path / f"{name}.sock").close()
        (tmp_path / f"{name}.json").touch()
        long_ago = time.time() - 2 * STALE
        os.utime(tmp_path / f"{name}.sock", (long_ago, long_ago))
    (tmp_path / "bbbb.lock").touch()  # of one that was killed with its watcher
    with (tmp_path / "aaaa.lock").open("w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        _sweep(tmp_path)
    assert {path.name for path in tmp_path.glob("m.*")} == {"m.aaaa.sock", "m.aaaa.json"}
