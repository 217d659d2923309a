"""What is done to a home's log and its disk: a disk that fills, a bit that flips, an end that is torn or cut off."""

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

from poise.config import Home
from poise.errors import PoiseError
from system.living import Living, kill

BULKY = {"run": ["true"], "resources": {"cpu": 0.1}, "env": {"BULK": "x" * 50_000}}
PAGE = 4096


class NotHere(Exception):
    """This machine does not allow it; the text says why."""


# --- a full disk -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(living: Living, size: str, at: Path | None = None) -> Iterator[None]:
    """A disk of its own for the home that is not there yet, or for a folder of it. Raises `NotHere` where nobody may
    mount one.
    """
    folder = at or living.home.root
    folder.mkdir(mode=0o700, parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        raise NotHere(f"this machine lets nobody mount: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        for pid in living.processes():
            kill(pid)
        subprocess.run(["umount", "-l", folder], check=True)


def filled(folder: Path, *, leaving: int) -> Path:
    """A file on the disk of a folder that leaves so many bytes."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):  # OSError: it is full
        while (status := os.statvfs(ballast)).f_bavail * status.f_bsize > leaving:
            file.write(b"x" * 65536)
    return ballast


def fill(living: Living) -> PoiseError:
    """Submit until it is refused."""
    client = living.client()
    for number in range(500):
        try:
            client.submit(BULKY, key=f"bulky-{number}")
        except PoiseError as error:
            return error
    raise AssertionError("it was never full")


# --- a damaged log ---------------------------------------------------------------------------------------------------


def history(living: Living) -> list[str]:
    """Two hundred events, all in the main file, and nobody running. Returns the jobs, all of them done."""
    living.up()
    client = living.client()
    specs = [{"run": ["true"], "resources": {"cpu": 0.1}} for _ in range(30)]
    jobs = [receipt.job for receipt in client.submit_stream(specs)]
    for job in jobs:
        assert client.wait(job, 60).status == "done"
    assert living.poise("down").code == 0
    with sqlite3.connect(living.home.log) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return jobs


def flip(home: Home, revision: int) -> None:
    """Flip one bit in a record, in the file itself."""
    with sqlite3.connect(home.log) as connection:
        (record,) = connection.execute("SELECT record FROM log WHERE revision = ?", (revision,)).fetchone()
    connection.close()
    content = bytearray(home.log.read_bytes())
    place = content.index(record) + len(record) // 2
    content[place] ^= 0x10
    home.log.write_bytes(content)


def tear(living: Living) -> None:
    """A power cut in the middle of the last write to the log, before its mark was synced."""
    while left := living.processes():  # nothing survives a power cut
        for pid in left:
            kill(pid)
    wal = living.home.log.with_name("log.db-wal")
    torn = wal.read_bytes()
    assert len(torn) > 5000
    wal.write_bytes(torn[:-2000])
    living.home.log.with_name("log.mark").unlink()


def cut(home: Home) -> None:
    """The second half of the log is gone."""
    os.truncate(home.log, home.log.stat().st_size // 2 // PAGE * PAGE)
