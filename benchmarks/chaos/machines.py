"""Rows 3, 6 and 16: machines that are gone, networks that are cut, devices that come and go."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from system.apart import CONTROL, NODES, Apart, on_three_machines
from system.damage import NotHere
from system.living import Living, alive, kill, until
from system.networks import HERE

from chaos import TESTS
from chaos.turns import ONE_ROUND, SLEEP, Observer, Spec, Stage, Turn, running, stopped, untouched
from poise.config import Home
from poise.drivers.lock import holder

# --- 3: a machine ----------------------------------------------------------------------------------------------------

FLEET = "kind: fleet\nname: two\nnodes: {one: {cpu: 1, memory: 1GiB}, other: {cpu: 1, memory: 1GiB}}\n"


def machine_gone(living: Stage) -> Turn:
    """Of two declared nodes one loses its agent, its keepers and its commands at once, and nobody starts them again."""
    living.up("--fleet", str(living.file("fleet.yaml", FLEET)))
    observer = Observer(living)
    until(lambda: len(living.client().nodes()) == 2, "both nodes have joined", living.messages)
    job, pid = running(living, {"run": SLEEP})
    folder = str(living.home.nodes / living.client().job(job).tasks[0].node)
    with stopped(living.pid("supervisor")):
        gone = time.monotonic()
        for process in [holder(Path(folder) / "lock"), pid, *_named(living, f"{folder}/")]:
            kill(process)
        noticed, _ = observer.until("lost")
        again, _ = observer.until("started", task=f"{job}.main", epoch=2)
        assert str(living.home.nodes / living.client().job(job).tasks[0].node) != folder
    return Turn([noticed - gone], [again - noticed])


def _named(living: Living, text: str) -> list[int]:
    return [pid for pid, arguments in living.processes().items() if text in arguments]


def machine_gone_apart(living: Stage) -> Turn:
    """Of two machines one is switched off with all that runs there, and nothing of it is heard on the network."""
    apart = _apart(living)
    observer = Observer(living)
    job, _ = _on(FAR, apart, {"run": SLEEP})
    gone = time.monotonic()
    apart.switch_off(FAR)
    noticed, _ = observer.until("lost")
    again, _ = observer.until("started", task=f"{job}.main", epoch=2)
    assert living.client().job(job).tasks[0].node == NEAR
    return Turn([noticed - gone], [again - noticed])


# --- 6: partitions ---------------------------------------------------------------------------------------------------

NEAR, FAR = "a", "b"
FLAPS = 4
ALL_CUT = 15.0
"""Seconds; a node that is silent for 10 s is lost."""

ALIVE = 'while echo "$POISE_EPOCH" >> {}; do sleep 0.02; done'
"""Says so for as long as it is."""

Cut = Callable[[Apart], None]


def _cut(apart: Apart) -> None:
    apart.networks.cut(FAR)


def _join(apart: Apart) -> None:
    apart.networks.join(FAR)


def _silence(apart: Apart) -> None:
    apart.networks.cut_way(FAR, CONTROL)


def _hear(apart: Apart) -> None:
    apart.networks.join_way(FAR, CONTROL)


def _deafen(apart: Apart) -> None:
    apart.networks.cut_way(CONTROL, FAR)


def _listen(apart: Apart) -> None:
    apart.networks.join_way(CONTROL, FAR)


PARTITIONS: dict[str, tuple[Cut, Cut]] = {
    "both ways": (_cut, _join),
    "messages from it are lost": (_silence, _hear),
    "messages to it are lost": (_deafen, _listen),
}


def partition(which: str, living: Stage) -> Turn:
    """The node is given up, and its work placed elsewhere. What goes on there counts no more, and ends once it is back:
    *recovered* is from when the network is whole until the node is up and runs what it should, and nothing else.
    """
    cut, join = PARTITIONS[which]
    apart = _apart(living)
    observer = Observer(living)
    moved, orphan = _on(FAR, apart, {"run": SLEEP})
    here, pid = _on(NEAR, apart, {"run": SLEEP})
    begun = time.monotonic()
    cut(apart)
    noticed, _ = observer.until("lost", name=FAR)
    observer.until("started", task=f"{moved}.main", epoch=2)
    assert alive(orphan), "nobody could tell it to stop"
    join(apart)
    healed = time.monotonic()
    until(lambda: apart.statuses()[FAR] == "up" and not alive(orphan), "it is back", living.messages)
    recovered = time.monotonic()
    task = living.client().job(moved).tasks[0]
    assert (task.node, task.epoch, task.status) == (NEAR, 2, "running"), task
    untouched(living, here, pid)
    return Turn([noticed - begun], [recovered - healed])


def flapping(living: Stage) -> Turn:
    """The network goes for a while and comes back, shorter than makes a node lost: nothing is moved."""
    apart = _apart(living)
    observer = Observer(living)
    job, pid = _on(FAR, apart, {"run": SLEEP})
    for number in range(FLAPS):
        _cut(apart)
        time.sleep(1.0 + number)
        _join(apart)
        time.sleep(1.0)
    healed = time.monotonic()
    until(lambda: apart.statuses()[FAR] == "up", "it is back", living.messages)
    also, _ = _on(FAR, apart, {"run": SLEEP})
    recovered = time.monotonic()
    assert not observer.saw("lost", name=FAR), "it was given up"
    untouched(living, job, pid)
    assert living.client().job(also).tasks[0].epoch == 1
    return Turn([], [recovered - healed])


def all_cut(living: Stage) -> Turn:
    """The network of the control plane fails for longer than a node may be silent: it takes no node for lost, and all
    work keeps running. *recovered*: from when the network is whole until all nodes are up.
    """
    apart = _apart(living)
    observer = Observer(living)
    jobs = [_on(node, apart, {"run": SLEEP}) for node in NODES]
    apart.networks.cut(CONTROL)
    time.sleep(ALL_CUT)
    apart.networks.join(CONTROL)
    healed = time.monotonic()
    until(lambda: set(apart.statuses().values()) == {"up"}, "all are back", living.messages)
    recovered = time.monotonic()
    for job, pid in jobs:
        untouched(living, job, pid)
    assert not observer.saw("lost"), "a node was taken for lost"
    return Turn([], [recovered - healed])


def exclusive(living: Stage) -> Turn:
    """Of exclusive work the copy that is cut off has ended before the next one begins, by what both have written down.
    *noticed*: until the cut-off copy has said its last; *recovered*: from then until the next one runs.
    """
    apart = _apart(living)
    observer = Observer(living)
    signs = living.work / "signs"
    job, orphan = _on(FAR, apart, {"run": ["sh", "-c", ALIVE.format(signs)], "lease": "exclusive"})
    begun = time.monotonic()
    _cut(apart)
    until(lambda: not alive(orphan), "the copy that was cut off has ended", living.messages)
    ended = time.monotonic()
    again, _ = observer.until("started", task=f"{job}.main", epoch=2)
    _join(apart)
    until(lambda: apart.statuses()[FAR] == "up", "it is back", living.messages)
    until(lambda: "2" in signs.read_text().split(), "the next one says so")
    said = signs.read_text().split()
    assert said == sorted(said), "two copies of exclusive work ran at once"
    assert again > ended
    living.client().cancel(job)
    return Turn([ended - begun], [again - ended])


def _apart(living: Stage) -> Apart:
    if not HERE:
        raise NotHere("only root makes networks, with `ip`")
    return living.use(on_three_machines(living))


def _on(node: str, apart: Apart, spec: Spec) -> tuple[str, int]:
    """A job that runs there first, and may run anywhere afterwards; and its process."""
    client = apart.living.client()
    others = [other for other in NODES if other != node]
    for other in others:
        client.drain(other)
    job, pid = running(apart.living, {"resources": {"cpu": 0.5}} | spec)
    assert client.job(job).tasks[0].node == node
    for other in others:
        client.drain(other, on=False)
    return job, pid


# --- 16: devices and machines that come and go -----------------------------------------------------------------------

RECORDED = TESTS / "drivers" / "recorded" / "npu-smi-910b2.txt"
DEVICES = 3
A_DEVICE = {"run": SLEEP, "resources": {"cpu": 0.1, "gpu": 1, "gpu_kind": "npu"}}


def device_goes(living: Stage) -> Turn:
    """The last of three devices is no longer named by its maker's tool, then it is again. *noticed*: until what ran on
    it is lost; *recovered*: from when the node says that it has it again until what waits runs on it.
    """
    tools, table = _tools(living)
    up = living.poise("up", "--port", "0", PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")
    assert up.code == 0, up.err
    observer = Observer(living)
    until(lambda: living.client().nodes(), "the node has joined", living.messages)
    jobs = {}
    for _ in range(DEVICES):
        job, pid = running(living, A_DEVICE)
        jobs[living.client().job(job).tasks[0].devices] = job, pid
    assert sorted(jobs) == [(0,), (1,), (2,)]
    gone, _ = jobs.pop((DEVICES - 1,))
    whole = table.read_text()
    begun = time.monotonic()
    _put(table, _without_the_last(whole))
    noticed, finished = observer.until("finished", task=f"{gone}.main", epoch=1)
    assert finished["ending"]["outcome"] == "lost", finished
    offered = list(range(DEVICES - 1))
    until(lambda: [of.index for of in living.client().nodes()[0].devices] == offered, "it is not offered")
    time.sleep(2 * ONE_ROUND)
    assert not observer.saw("placed", unit=f"{gone}.main", epoch=2), "it was placed on a device that is not there"
    put_back = time.monotonic()
    _put(table, whole)
    joined, _ = observer.until("joined", since=put_back)
    again, _ = observer.until("started", task=f"{gone}.main", epoch=2)
    for job, pid in jobs.values():
        untouched(living, job, pid)
    return Turn([noticed - begun], [again - joined])


def _tools(living: Stage) -> tuple[Path, Path]:
    """A folder with an `npu-smi` that prints a table, and the table."""
    tools = living.root / "tools"
    tools.mkdir()
    table = tools / "table"
    shutil.copy(RECORDED, table)
    tool = tools / "npu-smi"
    tool.write_text(f"#!/bin/sh\ncat {table}\n")
    tool.chmod(0o755)
    return tools, table


def _put(table: Path, text: str) -> None:
    """At once: whoever reads it meanwhile has the old one or the new one."""
    draft = table.with_suffix(".next")
    draft.write_text(text)
    draft.replace(table)


def _without_the_last(table: str) -> str:
    lines = table.splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if "910B2" in line)
    return "".join(lines[:last] + lines[last + 3 :])


def another_under_its_name(living: Stage) -> Turn:
    """A machine is gone for good, and before anybody has missed it another one comes under its name. *noticed*: from
    its coming until what ran on the first one is lost; *recovered*: from then until that runs again.
    """
    apart = _apart(living)
    observer = Observer(living)
    job, _ = _on(FAR, apart, {"run": SLEEP})
    before = living.client().nodes()
    apart.switch_off(FAR)
    apart.networks.join(FAR)
    apart.homes[FAR] = Home(living.home.root.with_name(f"home-{FAR}-anew"))
    came = time.monotonic()
    apart.start(FAR)
    noticed, finished = observer.until("finished", task=f"{job}.main", epoch=1)
    assert "started anew" in finished["ending"]["note"], finished
    again, _ = observer.until("started", task=f"{job}.main", epoch=2)
    assert [node.name for node in living.client().nodes()] == [node.name for node in before]
    assert not observer.saw("lost", name=FAR), "it was missed before the other came"
    return Turn([noticed - came], [again - noticed])
