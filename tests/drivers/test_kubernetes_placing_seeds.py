"""Gangs of others on a cluster in which everything breaks at random: bindings that are refused or whose answer is lost,
copies that are late, a scheduler and a control plane that are killed, nodes that go, Pods that are deleted, and another
scheduler. In the end each gang has run whole, nothing is held, and no Pod was bound twice.
"""

import os
from random import Random

import pytest

from drivers.kubernetes_api import Object, Refusal, node
from drivers.kubernetes_scheduled import OURS, Scheduled
from poise.units import SECOND

SEEDS = range(1, 1 + int(os.environ.get("KUBERNETES_PLACING_SEEDS", "15")))
FOUND = (8144,)  # it submitted a job again that it was about to cancel
NODES = "abcd"
STORM, CALM = 60, 1500
"""Seconds with faults, and at most so many until all is done."""

RUNS = 5
"""Seconds that a gang works once all its Pods run."""


class Gang:
    """Its controller creates a Pod in the place of each that failed or was deleted. Its Pods work once all run."""

    def __init__(self, world: Scheduled, name: str, pods: int, cpu: str) -> None:
        self.world, self.name, self.pods, self.cpu = world, name, pods, cpu
        self.created = [0] * pods
        self.since: int | None = None
        self.done = False

    def alive(self) -> list[Object]:
        return [of for of in self.world.api.all("pods") if of["metadata"]["name"].startswith(f"{self.name}-")]

    def control(self) -> None:
        if self.done:
            return
        alive = self.alive()
        for one in alive:
            if one["status"].get("phase") == "Failed":
                self.world.api.remove("pods", one["metadata"]["name"], "ml")
        there = {of["metadata"]["name"].split("-")[1] for of in self.alive()}
        for index in range(self.pods):
            if str(index) not in there:
                self.created[index] += 1
                labels = {"pod-group.scheduling.sigs.k8s.io/name": self.name}
                labels["pod-group.scheduling.sigs.k8s.io/min-available"] = str(self.pods)
                self.world.pod(f"{self.name}-{index}-{self.created[index]}", self.cpu, labels=labels)
        alive = self.alive()
        runs = [of for of in alive if of["status"].get("phase") == "Running" and not _leaves(of)]
        if len(runs) < self.pods:
            self.since = None
        elif self.since is None:
            self.since = self.world.now
        elif self.world.now - self.since >= RUNS * SECOND:
            self.done = True
            for one in runs:
                self.world.end(one["metadata"]["name"])


def _leaves(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


class Kubelets:
    """They run what is bound to them, refuse what does not fit, and end what is deleted."""

    def __init__(self, world: Scheduled) -> None:
        self.world = world

    def work(self) -> None:
        api = self.world.api
        there = {of["metadata"]["name"]: of for of in api.all("nodes")}
        held = dict.fromkeys(there, 0)
        for one in sorted(api.all("pods"), key=lambda of: of["status"].get("phase") != "Running"):
            where, name, space = one["spec"].get("nodeName"), one["metadata"]["name"], one["metadata"]["namespace"]
            if not where or one["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            if where not in there or _leaves(one):  # removed with its node, or ended
                api.remove("pods", name, space)
                continue
            cpu = int(one["spec"]["containers"][0]["resources"]["requests"]["cpu"])
            if held[where] + cpu > int(there[where]["status"]["allocatable"]["cpu"]):
                api.patch("pods", name, {"status": {"phase": "Failed", "reason": "OutOfcpu"}}, space)
                continue
            held[where] += cpu
            if one["status"].get("phase") != "Running":
                api.patch("pods", name, {"status": {"phase": "Running"}}, space)


@pytest.mark.parametrize("seed", sorted({*SEEDS, *FOUND}))
def test_each_gang_runs_whole_and_nothing_is_left(seed: int) -> None:
    draw = Random(f"gangs {seed}")  # noqa: S311 — what a seed decides is no secret
    world = Scheduled(seed, {name: node(cpu="4") for name in NODES})
    try:
        gangs = [Gang(world, f"g{number}", draw.randint(1, 6), draw.choice(["1", "2"])) for number in range(5)]
        kubelets = Kubelets(world)
        world.fault = lambda what: draw.choice(["", "", "", "refused", "lost", "away"])
        world.stale = 0.3
        for _ in range(STORM):
            _round(world, gangs, kubelets)
            _break(world, draw)
        _heal(world)
        for _ in range(CALM):
            _round(world, gangs, kubelets)
            if all(gang.done for gang in gangs):
                break
        assert all(gang.done for gang in gangs), (seed, world.jobs(), world.on(), world.told[-20:])
        world.run(10)
        assert max(world.bindings.values()) == 1
        assert set(world.jobs().values()) <= {"done", "failed", "cancelled"}, (seed, world.jobs())
        assert not world.placer.waiting()
    finally:
        world.close()


def _round(world: Scheduled, gangs: list[Gang], kubelets: Kubelets) -> None:
    for gang in gangs:
        gang.control()
    kubelets.work()
    world.run(1)


def _break(world: Scheduled, draw: Random) -> None:
    drawn, name = draw.random(), draw.choice(NODES)
    ours = [of for of in world.api.all("pods") if of["spec"].get("schedulerName") == OURS]
    if drawn < 0.06:
        world.kill_placer()
    elif drawn < 0.1:
        world.home.kill()
    elif drawn < 0.16:
        world.api.put("nodes", name, **node(cpu="4", ready=draw.random() < 0.5))
    elif drawn < 0.2:
        _lose(world, name)
    elif drawn < 0.25:
        world.api.put("nodes", name, **{**node(cpu="4"), "spec": {"unschedulable": draw.random() < 0.5}})
    elif drawn < 0.45:
        world.theirs(f"theirs-{draw.randrange(10**6)}", name, str(draw.randint(1, 3)))
    elif drawn < 0.55 and ours:
        one = draw.choice(ours)
        try:
            parts = ["api", "v1", "namespaces", "ml", "pods", one["metadata"]["name"]]
            world.api.call("DELETE", parts, {}, {})
        except Refusal:
            pass
    elif drawn < 0.6 and ours:
        world.api.patch("pods", draw.choice(ours)["metadata"]["name"], {"status": {"phase": "Failed"}}, "ml")


def _lose(world: Scheduled, name: str) -> None:
    """A node goes with its Pods, and comes back as another."""
    if ("", name) in world.api.objects["nodes"]:
        world.api.remove("nodes", name)
        world.timeline.call_in(5 * SECOND, lambda: world.api.put("nodes", name, **node(cpu="4")))


def _heal(world: Scheduled) -> None:
    world.run(6)
    world.fault, world.stale = lambda what: "", 0.0
    for name in NODES:
        world.api.put("nodes", name, **node(cpu="4"))
    for one in world.api.all("pods"):
        if one["metadata"]["name"].startswith("theirs"):
            world.api.remove("pods", one["metadata"]["name"], "team")
