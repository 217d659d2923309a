"""Row 29: work comes and goes, processes are killed, and what the control plane holds stays as it is."""

import contextlib
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import psutil
from harness import say
from system.living import Diary, Living, kill, until

from chaos.turns import Spec, Stage, Turn
from poise.client import Client
from poise.control.start import ensure_up
from poise.errors import PoiseError
from poise.units import MINUTE, SECOND

HISTORY = 200
"""Finished jobs that are kept: few, so that they are all there before it is looked at."""

PAUSE = 0.05
AT_MOST = 40
"""Jobs that are unfinished at once."""

KILL_EVERY = (2.0, 8.0)
SAMPLES = 200
RETRY = {"limit": 20, "backoff": "50ms", "when": ["lost", "killed", "signal"]}


class Held(NamedTuple):
    """What is held: bytes, threads and files of the control plane, and processes of the whole home that are no task."""

    memory: float
    threads: float
    files: float
    processes: float


MORE = Held(memory=0.05, threads=0, files=0.2, processes=0.2)
"""Parts by which the median of the last quarter may be above that of the second, in which caches have filled."""


def soak(minutes: float, living: Stage) -> Turn:
    """Short commands, gangs, failures and cancellations, while commands, keepers and the agent are killed. The
    control plane is what is measured; it is killed in row 4. A run of a day is this with more minutes.
    """
    ensure_up(living.home, "--port", "0", "--history", str(HISTORY)).close()
    until(lambda: living.client().nodes(), "the node has joined", living.messages)
    seconds = minutes * MINUTE / SECOND
    control, diary = living.pid("control"), Diary(living.work / "diary")
    stop = threading.Event()
    chance = random.Random(living.home.root.name)
    busy = [
        threading.Thread(target=_churn, args=(living, diary, stop)),
        threading.Thread(target=_kill, args=(living, chance, stop)),
    ]
    for thread in busy:
        thread.start()
    samples = []
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            samples.append(held(living, control))
            time.sleep(seconds / SAMPLES)
    finally:
        stop.set()
        for thread in busy:
            thread.join()
    assert living.pid("control") == control, "the control plane is another one"
    until(lambda: living.client().status().unfinished == 0, "all has ended", living.messages)
    again = {name for word, name, epoch in diary.entries() if word == "start" and epoch > 1}
    diary.check(killed=again | {"cancelled"})
    say(f"{len(diary.endings()):,} jobs have ended, {len(again)} of them again: {told(samples)}")
    assert again, "nothing that was killed was tried again"
    assert not (grown := growth(samples)), f"more is held of {grown}: {told(samples)}"
    return Turn()


def held(living: Living, control: int) -> Held:
    process = psutil.Process(control)
    others = len(living.processes()) - len(living.tasks())
    return Held(process.memory_info().rss, process.num_threads(), process.num_fds(), others)


def medians(samples: Sequence[Held]) -> tuple[Held, Held]:
    """Of the second quarter and of the last one."""
    quarter = len(samples) // 4
    parts = (samples[quarter : 2 * quarter], samples[-quarter:])
    before, last = (Held(*map(statistics.median, zip(*part, strict=True))) for part in parts)
    return before, last


def growth(samples: Sequence[Held]) -> list[str]:
    """What is above its bound."""
    before, last = medians(samples)
    return [name for name, more in MORE._asdict().items() if getattr(last, name) > getattr(before, name) * (1 + more)]


def told(samples: Sequence[Held]) -> str:
    before, last = (median._asdict() for median in medians(samples))
    return ", ".join(f"{name} {before[name]:,.0f} and {last[name]:,.0f}" for name in Held._fields)


def _churn(living: Living, diary: Diary, stop: threading.Event) -> None:
    """One job after another, of every kind, never too many at once."""
    client, number = living.client(), 0
    while not stop.wait(PAUSE):
        number += 1
        with contextlib.suppress(PoiseError):
            if client.status().unfinished < AT_MOST:
                _one(client, diary, number)


def _one(client: Client, diary: Diary, number: int) -> None:
    small: Spec = {"resources": {"cpu": 0.1}, "retry": RETRY}
    match number % 20:
        case 5:
            client.submit(small | {"run": ["false"], "retry": {"limit": 0}})
        case 10:
            client.submit(small | {"run": ["sleep", "0.1"], "workers": 3})
        case 15:
            client.cancel(client.submit(small | {"run": ["sleep", "30"]}))
        case _:
            client.submit(small | {"run": diary.command(0.1, f"n{number}")}, key=f"key {number}")


def _kill(living: Living, chance: random.Random, stop: threading.Event) -> None:
    while not stop.wait(chance.uniform(*KILL_EVERY)):
        among: dict[str, Callable[[], list[int]]] = {
            "tasks": living.tasks,
            "keepers": living.keepers,
            "agent": lambda: [living.pid("agent")],
        }
        found = among[chance.choice(list(among))]()
        if found:
            kill(chance.choice(found))
