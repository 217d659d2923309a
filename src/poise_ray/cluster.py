"""A Ray cluster as a substrate: on each machine an actor keeps an agent alive and holds Ray's resources for it.

The actors are detached and named, so they outlive the process that created them, and Ray restarts an actor that dies
while its machine lives. Each is bound to its machine and reserves what is free there when it starts: CPUs, memory,
devices. Its agent offers exactly that. So Poise never touches what others hold in the cluster, Ray gives nobody else
what Poise holds, and a gang needs no reservation of its own.

An agent ends with its actor. The commands that it started continue: the machine's next agent takes them over.
"""

import contextlib
import logging
import re
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from poise.config import parse_place
from poise.errors import Fault
from poise.ports import Contact, Machine, Pilot
from poise_ray.actor import AgentKeeper, dismiss
from poise_ray.own import OwnRay

NAMESPACE = "poise"
ANSWER_SECONDS = 30.0
"""Timeout for an answer of an actor whose process may just be starting."""

GONE_SECONDS = 5.0
"""Timeout for an answer of an actor that should be running."""

KNOCK_SECONDS = 5.0
MAX_NAME = 63

_log = logging.getLogger("poise.ray")


class RayCluster:
    """A Ray cluster that includes this machine. An actor is named by its home, its node, and Ray's id of its
    machine.
    """

    def __init__(self, address: str, home: str, own: OwnRay | None) -> None:
        """Raises Fault with a hint for the user."""
        _knock(address)
        try:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            hint = f"`ray start --address {address}` on this machine, with the same Ray"
            raise _no_ray("this machine is not one of Ray's", address, error, hint) from error
        self._home = home
        self._own = own
        self._beginning: dict[Pilot, Any] = {}

    def address(self) -> str:
        return str(ray.util.get_node_ip_address())

    def machines(self) -> list[Machine]:
        free, draining = _free(), _draining()
        found = []
        for node in ray.nodes():
            if node["Alive"]:
                identity, room = node["NodeID"], free.get(node["NodeID"], {})
                spare = max(room.get("CPU", 0.0), room.get("GPU", 0.0)) >= 1
                found.append(Machine(identity, called(node), node["Resources"], room, spare, identity in draining))
        return found

    def pilots(self) -> list[Pilot]:
        named = [name.split() for name in ray.util.list_named_actors() if name.startswith(f"{self._home} ")]
        return [Pilot(node, machine) for _, node, machine in named]

    def waiting(self) -> list[dict[str, float]]:
        """Return the demands of other users' tasks, actors and placement groups."""
        from ray.autoscaler.v2.sdk import get_cluster_status

        status = get_cluster_status(ray.get_runtime_context().gcs_address)
        demands = [*status.resource_demands.ray_task_actor_demand, *status.resource_demands.placement_group_demand]
        return [bundle.bundle for demand in demands for bundle in demand.bundles_by_count]

    def start(self, machine: Machine, node: str, contact: Contact) -> None:
        pilot = Pilot(node, machine.id)
        cpu, memory, gpus = (machine.free.get(of, 0.0) for of in ("CPU", "memory", "GPU"))
        _log.info("%s joins with %g CPU, %g GPU, %g bytes", pilot.node, cpu, gpus, memory)
        made = (
            ray.remote(AgentKeeper)
            .options(
                name=self._name(pilot),
                lifetime="detached",
                max_restarts=-1,
                num_cpus=cpu,
                num_gpus=int(gpus),
                memory=int(memory),
                scheduling_strategy=_on(machine),
            )
            .remote(self._home, node, cpu, memory, contact)
        )
        self._beginning[pilot] = made.__ray_ready__.remote()

    def has_begun(self, pilot: Pilot) -> bool:
        if pilot in self._beginning and ray.wait([self._beginning[pilot]], timeout=0)[0]:
            del self._beginning[pilot]
        return pilot not in self._beginning

    def tell(self, pilot: Pilot, contact: Contact) -> None:
        self._actor(pilot).tell.remote(contact)

    def restart(self, pilot: Pilot) -> None:
        self._actor(pilot).begin_anew.remote()

    def answering(self, pilots: Sequence[Pilot]) -> list[Pilot]:
        asked = {}
        for pilot in pilots:
            with contextlib.suppress(ValueError):  # it has just ended
                asked[pilot] = self._actor(pilot).__ray_ready__.remote()
        until = time.monotonic() + GONE_SECONDS
        return [pilot for pilot, answer in asked.items() if _answer(answer, until) is not None]

    def release(self, pilots: Sequence[Pilot]) -> list[Pilot]:
        asked = {}
        for pilot in pilots:
            with contextlib.suppress(ValueError):  # it has just ended
                asked[pilot] = self._actor(pilot).end.remote()
        until = time.monotonic() + ANSWER_SECONDS  # for all of them: whoever stops this process does not wait longer
        ended = [pilot for pilot in pilots if pilot not in asked or _answer(asked[pilot], until)]
        for pilot in ended:
            self.remove(pilot)
        return ended

    def remove(self, pilot: Pilot) -> None:
        self._beginning.pop(pilot, None)
        with contextlib.suppress(ValueError):  # it has just ended
            ray.kill(self._actor(pilot))

    def sweep(self, machines: Sequence[Machine]) -> bool:
        """End keepers without an actor, for example after a restart of Ray."""
        task = ray.remote(dismiss)
        left = [
            task.options(num_cpus=0, scheduling_strategy=_on(machine)).remote(self._home, machine.name)
            for machine in machines
        ]
        try:
            return all(ray.get(left, timeout=ANSWER_SECONDS))
        except ray.exceptions.RayError as error:
            _log.warning("keepers may be left on %s: %s", ", ".join(machine.name for machine in machines), error)
            return False

    def stop(self) -> None:
        if self._own is not None:
            self._own.end()

    def _name(self, pilot: Pilot) -> str:
        return f"{self._home} {pilot.node} {pilot.machine}"

    def _actor(self, pilot: Pilot) -> Any:
        return ray.get_actor(self._name(pilot))


def _on(machine: Machine) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(machine.id, soft=False)


def _answer(asked: Any, until: float) -> Any:
    """Return the answer of an actor by `until` (monotonic seconds); None without an answer."""
    try:
        return ray.get(asked, timeout=max(0.0, until - time.monotonic()))
    except ray.exceptions.RayError as error:
        _log.warning("an actor does not answer: %s", error)
        return None


def called(node: Mapping[str, Any]) -> str:
    """Return Poise's name for a machine: Ray's name, restricted to characters that a path and a command line accept."""
    name = re.sub(r"[^A-Za-z0-9._:-]+", "-", node["NodeName"]).lstrip("-.")[:MAX_NAME]
    return name or str(node["NodeID"])[:MAX_NAME]


def _knock(address: str) -> None:
    """Find within seconds what `ray.init` retries for minutes without naming it."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # missing in its stub

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


def _draining() -> set[str]:
    """Return Ray's ids of the machines that are leaving the cluster, where it places no more work."""
    from ray._private import state

    try:
        return set(state.state.get_draining_nodes())
    except AttributeError:  # a Ray without this information: its machines count as lost when they leave
        return set()


def _free() -> dict[str, dict[str, float]]:
    """Return the free resources of each machine, by Ray's id."""
    from ray._private.state import available_resources_per_node

    found: dict[str, dict[str, float]] = available_resources_per_node()
    return found
