"""Rows 17, 25 and 28: one leads where another stands by, a thousand nodes come back, what Poise can use is away."""

import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

import herd
import psutil
import pytest
import standby
from drivers import etcd_server, postgres_server
from system.living import PATIENCE, Diary, Living, free_port, kill, until
from system.onray import OnRay
from system.test_standby import Load, Pair

from chaos.turns import SLEEP, SMALL, Observer, Stage, Turn, running, untouched
from poise.control.start import ensure_up

AWAY = 5.0
SOME = 20


def leader_killed(store: str, living: Stage) -> Turn:
    """With its supervisor, under load. *noticed*: until the other one leads; *recovered*: from then until a job is
    acknowledged that was not yet sent.
    """
    pair = living.use(_pair(store))
    with Load(pair, Diary(living.work / "diary")) as load:
        leads, acknowledged, _ = standby.one_kill(pair, load, 0)
    load.check()
    return Turn([leads], [acknowledged - leads], [pair.first])


def store_away(store: str, living: Stage) -> Turn:
    """The store that has the log is killed under load, and comes back. *noticed*: until nobody leads any more, as
    nobody could write; *recovered*: from when it is back until jobs are acknowledged again.
    """
    pair = living.use(_pair(store))
    diary = Diary(living.work / "diary")
    client = pair.client()
    held = client.submit({"name": "held", "run": ["sh", "-c", diary.held()], "resources": {"cpu": 0.1}})
    until(lambda: list(diary.entries()), "it runs", pair.story)
    with Load(pair, diary) as load:
        load.wait_for(SOME)
        killed = time.monotonic()
        pair.server.kill()
        until(lambda: not (pair.leads(pair.first) or pair.leads(pair.second)), "nobody leads", pair.story)
        noticed = time.monotonic()
        time.sleep(max(0.0, killed + AWAY - time.monotonic()))
        pair.server.start()
        back = time.monotonic()
        load.wait_for(2)
        recovered = time.monotonic()
        load.wait_for(SOME)
    diary.release()
    assert client.wait(held).exit_code == 0, "what ran while it was away was not touched"
    load.check()
    return Turn([noticed - killed], [recovered - back], [pair.first])


def herd_comes_back(nodes: int, submissions: int, living: Stage) -> Turn:
    """The control plane is killed while each of so many node machines runs a command, and as much is submitted at once.
    *recovered*: until every node has been heard and answered. What they run is played, so there is nothing to be looked
    at afterwards: the control plane ends with its nodes.
    """
    listen = f"127.0.0.1:{free_port()}"
    client = living.use(contextlib.closing(ensure_up(living.home, "--port", "0", "--no-agent", "--listen", listen)))
    with herd.files_for_all(), herd.Swarm(living.home, nodes) as swarm:
        until(lambda: client.status().nodes == nodes, "all nodes have joined", living.messages)
        herd.hold(client, nodes, 3600.0)
        until(lambda: swarm.started() >= nodes, "a command on each", living.messages)
        back, *_ = herd.herd(living.home, client, swarm, submissions)
        for what in ("supervisor", "control"):
            kill(living.pid(what))
    return Turn([], [back])


def ray_head_away(living: Stage) -> Turn:
    """The machine of Ray's head is gone, and with it what Ray knows of its cluster. What ran there runs on the other
    machine, on which work goes on and new work is accepted, for as long as Ray leaves it there (a minute).
    """
    pytest.importorskip("ray")
    on_ray = living.use(_on_ray(living))
    client = living.client()
    observer = Observer(living)
    client.drain("a")
    stays, pid = running(living, {"run": SLEEP, "resources": {"cpu": 1}})
    client.drain("b")
    client.drain("a", on=False)
    moves, _ = running(living, {"run": SLEEP, "resources": {"cpu": 0.5}})
    assert (on_ray.where(stays), on_ray.where(moves)) == (["b"], ["a"])
    client.drain("b", on=False)
    gone = time.monotonic()
    _switch_off(on_ray, "a")
    noticed, _ = observer.until("lost", name="a")
    again, _ = observer.until("started", task=f"{moves}.main", epoch=2)
    assert on_ray.where(moves) == ["b"]
    assert client.wait(client.submit(SMALL), PATIENCE).status == "done"
    untouched(living, stays, pid)
    return Turn([noticed - gone], [again - noticed])


def _switch_off(on_ray: OnRay, node: str) -> None:
    """The machine is gone: Ray's processes there, the agent, its keepers and what they run."""
    ray = psutil.Process(on_ray.raylets[node].pid)
    for process in [ray, *ray.children(recursive=True)]:
        kill(process.pid)
    for folder in on_ray.living.home.root.glob(f"on-ray/*/{node}"):
        while left := on_ray.living.processes(str(folder).encode()):
            for pid in left:
                kill(pid)


@contextmanager
def _on_ray(living: Living) -> Iterator[OnRay]:
    on_ray = OnRay(living)
    try:
        yield on_ray
    finally:
        on_ray.close()


@contextmanager
def _pair(store: str) -> Iterator[Pair]:
    with etcd_server.running() if store == "etcd" else postgres_server.running() as server:
        pair = Pair(server)
        try:
            yield pair
        finally:
            pair.first.destroy()
            pair.second.destroy()
            pair.wire.close()
