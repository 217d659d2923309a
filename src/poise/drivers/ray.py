"""The machines of a Ray cluster as nodes: on each of them an actor keeps an agent, and holds for it what Ray gives out.

The actors are detached and named, so that they outlive whoever made them, and Ray starts one anew that dies while its
machine lives. Each is bound to its machine and takes of it what is free there when it begins: CPUs, memory, devices.
That is what its agent offers. So what others have of the cluster is never touched, what Poise has is not given to
others, and a gang needs nothing to be reserved for it: all of it is reserved already. When others wait for what a
machine has and nothing of Poise's runs there, it is lent to them; and taken again, with what is free then, once they
have what they asked for. When all that they could use is busy, what runs on one machine is preempted for them, unless
it may not be. A machine that has more free than its actor holds is taken anew in the same way.

An agent lives no longer than its actor. What it has started does: the next agent on that machine goes on with it.

What Ray knows of its machines and what Poise knows of its nodes is compared again and again. One that has left the
cluster, or was given back, is given up at once, where its silence alone would tell ten seconds later. One that was
given up while Ray takes it to be there gets a new agent, or a new actor where that does not answer. One that Ray drains
is emptied, and its actor leaves once nothing runs there, so that Ray need not wait for it.
"""

import contextlib
import logging
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from poise.config import parse_place
from poise.drivers.devices import Part
from poise.errors import Fault

NAMESPACE = "poise"
ANSWER_SECONDS = 30.0
"""What an actor may take to answer: its process may only just be starting."""

GONE_SECONDS = 5.0
"""What an actor may take to answer, when another machine has come under the name of its own."""

KNOCK_SECONDS = 5.0
STOP_SECONDS = 10.0
PAUSES = (0.1, 5.0)
"""Seconds before an agent that ended is started again: at first, and at most."""

STEADY_SECONDS = 10.0
PLACE_SECONDS = 20.0
"""What an actor may take to begin, where there is room for it."""

LEND_SECONDS = 30.0
"""A machine that was given back is left for so long to those who wait for it, and is not given back again before."""

PREEMPT_SECONDS = 5.0
"""Others wait for so long for a machine on which something runs, before that is preempted."""

COMPARE_SECONDS = 5.0
"""How often it is looked which nodes were given up."""

AGAIN_SECONDS = 30.0
"""A node that was given up gets a new agent no more often than this."""

MAX_NAME = 63

STILL_RUNS = 5
"""What an agent ends with whose commands go on."""

OTHERS = ("RAY_", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
"""Variables that are Ray's, and not the machine's."""

_log = logging.getLogger("poise.ray")


class Place(NamedTuple):
    """A machine of the cluster: Ray's name for it, what Poise calls it, and what is free there."""

    id: str
    name: str
    free: Mapping[str, float]


class Nodes(Protocol):
    """What Poise knows of its nodes, by name, and is told of them."""

    def idle(self) -> Container[str]:
        """Those on which nothing runs."""

    def lost(self) -> Container[str]:
        """Those that were given up, and have not been heard since."""

    def gone(self, *names: str) -> None:
        """These are to be given up: all that have gone together."""

    def lend(self, machines: Mapping[str, str]) -> str:
        """Others wait for one of these, by name, with Ray's names for their machines: what runs on one of them is
        preempted. Returns its name; empty where each runs what may not be preempted.
        """

    def empty(self, leaving: Mapping[str, str]) -> None:
        """What runs on these is to go on elsewhere, and nothing new to come. With Ray's names for their machines."""


class Told(NamedTuple):
    """What an agent is to know: where its control plane is, or those of which one leads; with which token, and whose
    node it is.
    """

    address: str
    token: str
    home: str


class AgentKeeper:
    """The actor: one agent, kept alive for as long as the actor is."""

    def __init__(self, name: str, cpu: float, memory: float, told: Told) -> None:
        self._name = name
        devices = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        self._part = Part(cpu=round(cpu * 1000), memory=int(memory), devices=tuple(map(str, devices)))
        self._told = told
        self._agent: subprocess.Popen[bytes] | None = None
        self._code = 0
        self._over = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._keep, name="poise-agent", daemon=True).start()

    def tell(self, told: Told) -> None:
        """Where the control plane is now. The agent is started again only if that has moved: the token of another
        control plane that leads now is for the next agent, and that of this one is still good.
        """
        moved, self._told = told.address != self._told.address, told
        if moved and self._agent is not None:
            self._agent.terminate()

    def begin_anew(self) -> None:
        """Another agent in the place of this one, which nobody hears: it may hang, so it is not asked."""
        if self._agent is not None:
            self._agent.kill()

    def end(self) -> bool:
        """End the agent, unless commands of its node go on; whether it has ended."""
        self._ended.clear()
        self._over.set()
        if self._agent is not None:
            self._agent.terminate()
        return self._ended.wait(STOP_SECONDS) and self._code != STILL_RUNS

    def _keep(self) -> None:
        pause = PAUSES[0]
        while not self._over.wait(pause):
            begun = time.monotonic()
            try:
                self._agent = self._start()
                self._code = self._agent.wait()
            except OSError as error:  # a full disk, too many processes: it is tried again
                _log.warning("the agent of %s cannot be started: %s", self._name, error)
            self._ended.set()
            if self._over.is_set() and self._code != STILL_RUNS:
                return
            self._over.clear()
            pause = PAUSES[0] if time.monotonic() - begun > STEADY_SECONDS else min(PAUSES[1], pause * 2)
        self._ended.set()

    def _start(self) -> "subprocess.Popen[bytes]":
        root = _root_of(self._told.home, self._name)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
        part = msgspec.json.encode(self._part).decode()
        program = [sys.executable, "-m", "poise.agent", str(root), "--name", self._name, "--part", part]
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (root / "poise.log").open("ab") as messages:
            return subprocess.Popen(  # noqa: S603 — our own program
                [*program, "--connect", self._told.address, "--attended"],
                stdin=subprocess.PIPE,  # it ends with this process, and so the agent does
                stdout=messages,
                stderr=messages,
                env=environment | {"POISE_TOKEN": self._told.token},
                cwd="/",
            )


class Cluster:
    """A Ray cluster that this machine belongs to. The name of an actor is that of its home, of its node, and Ray's for
    that.
    """

    def __init__(self, address: str) -> None:
        """Raises Fault, with what a person can do about it."""
        _knock(address)
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            hint = f"`ray start --address {address}` on this machine, with the same Ray"
            raise _no_ray("this machine is not one of Ray's", address, error, hint) from error
        self._known: set[str] = set()
        self._placing: dict[str, tuple[Any, float]] = {}
        self._given_back: dict[str, float] = {}
        self._waited_for: float | None = None  # since when others have waited for what is busy
        self._lending: dict[str, str] = {}  # actors that are given back once what runs there has been preempted
        self._compared = -math.inf
        self._begun_anew: dict[str, tuple[Any, float]] = {}

    def keep(self, told: Told, nodes: Nodes) -> None:
        """An agent on every machine that is there, and none for those that have gone."""
        there = {node["NodeID"]: node | {"NodeName": called(node)} for node in ray.nodes() if node["Alive"]}
        named = {node["NodeName"] for node in there.values()}
        names = self._named(told.home)
        left = [actor for actor in sorted(names.keys() | self._known) if actor.split()[2] not in there]
        # where another has come in the place of one, it says itself what it holds
        gone = [name for _, name, _ in map(str.split, left) if name not in named]
        if gone:
            nodes.gone(*gone)
        for actor in left:
            _log.info("%s has left the cluster", actor)
            self._kill(actor)
            names.pop(actor, None)
        for actor in names.keys() - self._known:
            ray.get_actor(actor).tell.remote(told)
            _log.info("%s is kept from here", actor)
            self._known.add(actor)
        for actor, node in list(names.items()):
            if node in there and self._is_replaced(actor, there[node], there, names.values()):
                _log.info("%s has left the cluster, and another came in its place", actor)
                self._kill(actor)
                del names[actor], there[node]
        free = _free()
        asked = [] if self._are_placing() else _asked_for()
        leaving = self._leaving(names)
        self._let_go(leaving, nodes)
        staying = {actor: identity for actor, identity in names.items() if actor not in leaving}
        self._share(staying, there, free, asked, nodes)
        self._hear_from_all(staying, nodes)
        taken = {actor.split()[1] for actor in names}
        for identity in sorted(there.keys() - set(names.values()) - _draining()):
            node, room = there[identity], free.get(identity, {})
            theirs = any(_fits(of, room) for of in asked) and not self._has_had_time(identity)
            name = node["NodeName"] if node["NodeName"] not in taken else f"{node['NodeName']}-{identity[:6]}"
            taken.add(name)
            if not theirs:
                self._place(Place(identity, name, room), told)

    def leaving(self, home: str) -> dict[str, str]:
        """The nodes of a home whose machines Ray drains, with Ray's names for those."""
        return {actor.split()[1]: identity for actor, identity in self._leaving(self._named(home)).items()}

    def end(self, home: str) -> bool:
        """End all agents of a home, and give back what they held, but for those whose commands go on; whether there are
        none of those. On machines that have no agent now, such as after a restart of Ray, its keepers are ended.
        """
        names = self._named(home)
        alone = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in names.values()]
        left = [
            ray.remote(_dismiss)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
            .remote(home, called(node))
            for node in alone
        ]
        ended = all(self._end(names).values())
        try:
            return all(ray.get(left, timeout=ANSWER_SECONDS)) and ended
        except ray.exceptions.RayError as error:
            _log.warning("keepers may be left on %s: %s", ", ".join(map(called, alone)), error)
            return False

    def _end(self, actors: Collection[str]) -> dict[str, bool]:
        """Which of these have ended, asked all at once."""
        asked = {}
        for name in actors:
            with contextlib.suppress(ValueError):  # it has just gone
                asked[name] = ray.get_actor(name).end.remote()
        until = time.monotonic() + ANSWER_SECONDS  # for all of them: who ends this process waits no longer
        return {name: self._ended(name, answer, until) for name, answer in asked.items()}

    def _leaving(self, names: Mapping[str, str]) -> dict[str, str]:
        """Those of these actors that have begun, and whose machines are lent or drained by Ray."""
        draining = _draining()
        return {
            actor: of
            for actor, of in names.items()
            if (of in draining or actor in self._lending) and actor not in self._placing
        }

    def _let_go(self, leaving: Mapping[str, str], nodes: Nodes) -> None:
        """Empty the nodes of machines that leave, and give those back on which nothing runs any more."""
        if not leaving:
            return
        nodes.empty({actor.split()[1]: identity for actor, identity in leaving.items()})
        idle, lent = nodes.idle(), set(self._lending)
        for actor, ended in self._end([actor for actor in leaving if actor.split()[1] in idle]).items():
            if ended and actor in lent:
                _log.info("%s is given back: others wait for it", actor)
                self._given_back[leaving[actor]] = time.monotonic()
            elif ended:
                _log.info("%s is given back: Ray drains its machine", actor)
            if ended:
                nodes.gone(actor.split()[1])

    def _share(
        self,
        names: Mapping[str, str],
        there: Mapping[str, Mapping[str, Any]],
        free: Mapping[str, Mapping[str, float]],
        asked: Sequence[Mapping[str, float]],
        nodes: Nodes,
    ) -> None:
        """Give back one machine on which nothing runs, if others wait for it, or more of it could be had. Where others
        have waited for what is busy, what runs on one of their machines is preempted.
        """
        busy: dict[str, str] = {}
        for actor, identity in sorted(names.items()):
            name, room = actor.split()[1], free.get(identity, {})
            wanted = [of for of in asked if _fits(of, there[identity]["Resources"]) and not _fits(of, room)]
            more = not asked and max(room.get("CPU", 0.0), room.get("GPU", 0.0)) >= 1
            if not (wanted or more) or self._placing or not self._has_had_time(identity):
                continue
            if name in nodes.idle():
                _log.info("%s is given back: %s", actor, wanted or "more of it is free")
                self._given_back[identity] = time.monotonic()
                if self._ended(actor, ray.get_actor(actor).end.remote(), time.monotonic() + ANSWER_SECONDS):
                    nodes.gone(name)
                return
            if wanted:
                busy[actor] = identity
        self._ask_back(busy, nodes)

    def _ask_back(self, busy: Mapping[str, str], nodes: Nodes) -> None:
        """Preempt what runs on one of these machines, when others have waited for it for long enough."""
        if not busy or self._lending:
            self._waited_for = None
            return
        now = time.monotonic()
        if self._waited_for is None:
            self._waited_for = now
        elif now - self._waited_for > PREEMPT_SECONDS:
            self._waited_for = now  # if nothing there may be preempted, it is asked again no sooner
            lent = nodes.lend({actor.split()[1]: identity for actor, identity in busy.items()})
            self._lending |= {actor: identity for actor, identity in busy.items() if actor.split()[1] == lent}

    def _hear_from_all(self, names: Mapping[str, str], nodes: Nodes) -> None:
        """New agents for nodes that Poise has given up and Ray has not; and for one whose actor does not take that in,
        a new actor, as for a machine that has none.
        """
        now = time.monotonic()
        for actor, (answer, asked) in list(self._begun_anew.items()):
            if now - asked > AGAIN_SECONDS:
                del self._begun_anew[actor]
                if actor in names and not ray.wait([answer], timeout=0)[0]:
                    _log.info("%s does not answer", actor)
                    self._kill(actor)
        if now - self._compared < COMPARE_SECONDS:
            return
        self._compared = now
        lost = nodes.lost()
        for actor in sorted(names.keys() - self._begun_anew.keys() - self._placing.keys()):
            if actor.split()[1] in lost:
                _log.info("%s is not heard, and gets another agent", actor)
                self._begun_anew[actor] = ray.get_actor(actor).begin_anew.remote(), now

    def _is_replaced(
        self, actor: str, node: Mapping[str, Any], there: Mapping[str, Mapping[str, Any]], held: Collection[str]
    ) -> bool:
        """Whether this one does not answer, and another has come under its name: Ray is slow to see who is gone."""
        same = [of for of in there.values() if of["NodeName"] == node["NodeName"] and of["NodeID"] not in held]
        if not same or actor in self._placing:
            return False
        try:
            ray.get(ray.get_actor(actor).__ray_ready__.remote(), timeout=GONE_SECONDS)
        except (ray.exceptions.RayError, ValueError):
            return True
        return False

    def _has_had_time(self, identity: str) -> bool:
        """Whether it is so long since a machine was given back that it may be taken, or given back again."""
        return time.monotonic() - self._given_back.get(identity, -math.inf) > LEND_SECONDS

    def _ended(self, actor: str, answer: Any, until: float) -> bool:
        try:
            idle = bool(ray.get(answer, timeout=max(0.0, until - time.monotonic())))
        except ray.exceptions.RayError as error:
            _log.warning("%s does not answer: %s", actor, error)
            return False
        if idle:
            self._kill(actor)
        return idle

    def _place(self, place: Place, told: Told) -> None:
        actor = f"{told.home} {place.name} {place.id}"
        cpu, memory, gpus = (place.free.get(of, 0.0) for of in ("CPU", "memory", "GPU"))
        _log.info("%s joins with %g CPU, %g GPU, %g bytes", actor, cpu, gpus, memory)
        made = (
            ray.remote(AgentKeeper)
            .options(
                name=actor,
                lifetime="detached",
                max_restarts=-1,
                num_cpus=cpu,
                num_gpus=int(gpus),
                memory=int(memory),
                scheduling_strategy=NodeAffinitySchedulingStrategy(place.id, soft=False),
            )
            .remote(place.name, cpu, memory, told)
        )
        self._known.add(actor)
        self._placing[actor] = made.__ray_ready__.remote(), time.monotonic() + PLACE_SECONDS

    def _are_placing(self) -> bool:
        """Whether an actor is still to begin. One that does not had others come before it, and is made anew."""
        for actor, (ready, until) in list(self._placing.items()):
            if ray.wait([ready], timeout=0)[0]:
                del self._placing[actor]
            elif time.monotonic() > until:
                _log.info("%s has not begun: there is less free than there was", actor)
                self._kill(actor)
        return bool(self._placing)

    def _named(self, home: str) -> dict[str, str]:
        """The names of a home's actors, with the machine that each is bound to."""
        return {name: name.split()[2] for name in ray.util.list_named_actors() if name.startswith(f"{home} ")}

    def _kill(self, name: str) -> None:
        self._known.discard(name)
        self._placing.pop(name, None)
        self._lending.pop(name, None)
        with contextlib.suppress(ValueError):  # it has just gone
            ray.kill(ray.get_actor(name))


def called(node: Mapping[str, Any]) -> str:
    """What Poise calls a machine: by the name that Ray has for it, in letters that a path and a command line take."""
    name = re.sub(r"[^A-Za-z0-9._:-]+", "-", node["NodeName"]).lstrip("-.")[:MAX_NAME]
    return name or str(node["NodeID"])[:MAX_NAME]


def _root_of(home: str, name: str) -> Path:
    """Where a node of this home lives on its machine."""
    return Path(os.environ.get("POISE_HOME") or "~/.poise").expanduser() / "on-ray" / home / name


def _dismiss(home: str, name: str) -> bool:
    """On a machine that has no agent: end the keepers of this node; whether none is left."""
    root = _root_of(home, name)
    if not (root / "node").exists():
        return True
    with (root / "poise.log").open("ab") as messages:
        program = [sys.executable, "-m", "poise.agent", str(root), "--name", name, "--dismiss"]
        done = subprocess.run(  # noqa: S603 — our own program
            program, check=False, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, timeout=ANSWER_SECONDS
        )
    return done.returncode == 0


def own_address() -> str:
    """This machine's address, as the others of the cluster know it."""
    return str(ray.util.get_node_ip_address())


def _knock(address: str) -> None:
    """See within seconds what `ray.init` tries for minutes, and does not say then."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # it is not in its stub

    if ":" not in address:  # `auto`: Ray finds it
        return
    host, port = parse_place(address, "--on")
    try:
        socket.create_connection((host, port), KNOCK_SECONDS).close()
    except OSError as error:
        raise _no_ray("no Ray answers there", address, error, "`ray start --head` there") from None
    try:
        GcsClient(address=address)
    except ray.exceptions.AuthenticationError as error:
        hint = "copy `~/.ray/auth_token` of Ray's head to this machine"
        raise _no_ray("Ray does not let this machine in without its secret", address, error, hint) from None
    except ray.exceptions.RayError as error:
        raise _no_ray("what listens there is no Ray", address, error, "`ray start --head` there") from None


def _no_ray(what: str, address: str, error: Exception, hint: str) -> Fault:
    have = f"{address}: {str(error).partition(chr(10))[0][:200]}"
    return Fault(what, code="E214", field="--on", have=have, hint=f"{hint}; Poise retries until `poise down`")


def _asked_for() -> list[dict[str, float]]:
    """What tasks, actors and placement groups of others wait for, each a part of one machine."""
    from ray.autoscaler.v2.sdk import get_cluster_status

    status = get_cluster_status(ray.get_runtime_context().gcs_address)
    demands = [*status.resource_demands.ray_task_actor_demand, *status.resource_demands.placement_group_demand]
    return [bundle.bundle for demand in demands for bundle in demand.bundles_by_count]


def _fits(bundle: Mapping[str, float], room: Mapping[str, float]) -> bool:
    return all(amount <= room.get(of, 0.0) for of, amount in bundle.items())


def _draining() -> set[str]:
    """Ray's names for the machines that are to leave the cluster: those on which it places nothing more."""
    from ray._private import state

    try:
        return set(state.state.get_draining_nodes())
    except AttributeError:  # a Ray that does not say so: its machines are then lost when they leave
        return set()


def _free() -> dict[str, dict[str, float]]:
    """What is free of each machine, by Ray's name for it."""
    from ray._private.state import available_resources_per_node

    found: dict[str, dict[str, float]] = available_resources_per_node()
    return found
