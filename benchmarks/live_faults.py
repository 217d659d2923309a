"""Inject every fault of the matrix that real processes allow into a live Poise, with real kills, and measure recovery.

    python benchmarks/live_faults.py [--rows 1,2,4,…] [--repeats 3] [--outage 5] [--kills 100] [--no-peers] [--json]

Each turn starts Poise in its own state directory, submits jobs, injects the fault, and observes. *noticed*: from the
fault until it is reported. *recovered*: from then until the expected jobs run again, or the expected requests are
accepted. The figure's note names the observation: an event, timed by an observer that follows `poise events`; or the
wall clock of an external observer.

After each turn the promises are judged (`chaos/verdict.py`): S1, S2, S4, S6 and S7 by the log; L1 to L4 if a control
plane answers; and those of the row by the turn itself. A violation is a broken promise, and so is a turn in which an
expected event did not happen.

The rows, the invariants and the targets are those of docs/explanation/fault-matrix.md.
"""

import argparse
import functools
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import harness
import pytest
from chaos import beside, clocks, disks, gateways, inputs, machines, others, policies, processes, soak, verdict, work
from chaos.turns import ONE_ROUND, Case, Stage, Turn, tested
from harness import Figure, say
from system.damage import NotHere
from system.dying import STEPS

from poise.errors import PoiseError
from poise.units import MINUTE, parse_duration

BY_EVENTS = "by events"
BY_CLOCK = "by the observer's clock"
PEER_TURNS = 2
KEPT, HELD = "kept: ", "held"
STORES = ("postgres", "etcd")
STANDBY = "system/test_standby.py::test_a_leader_that_"
STALE_LEADERS = (
    f"{STANDBY}stood_still_says_nothing_any_more",
    f"{STANDBY}is_cut_off_from_the_store_leaves_before_another_leads",
)
ESCAPED = (
    "drivers/test_process.py::test_a_killed_keeper_is_noticed_and_buried",
    "drivers/test_process.py::test_agent_and_keeper_are_both_killed",
    "drivers/test_process.py::test_what_bears_the_mark_is_killed_and_named_if_it_does_not_end_in_time",
)
KEEPERS_DISK = (
    "drivers/test_keeper.py::test_what_cannot_be_recorded_is_not_run_but_handed_back",
    "drivers/test_keeper.py::test_an_ending_that_cannot_be_written_holds_the_slot",
    "drivers/test_keeper.py::test_an_ending_has_its_place_on_a_disk_that_fills_meanwhile",
)
EVALUATIONS = ("train/test_evaluating.py", "unit/kernel/test_node.py", "train/test_adapters.py")
CHECKPOINTS = ("train/test_checkpoints.py",)
RESIZES = (
    "faults/test_resizing.py",
    "train/test_session.py",
    "system/test_elastic_training.py",
)
SERVING = ("system/test_serve.py", "system/test_serve_ends.py", "gateway/test_upstreams.py")
TOO_LARGE = ("system/test_bad_input.py", "system/test_serve_bad_input.py", "gateway/test_bad_input.py")
SLOW_CLIENTS = (
    "system/test_api.py::test_slow_and_silent_clients_hold_up_nobody",
    "system/test_serve.py::test_clients_that_never_get_on_are_dropped",
    "gateway/test_slow_readers.py",
)
STRANGERS = (
    "system/test_api.py::test_every_route_is_denied",
    "system/test_api.py::test_only_health_the_authority_and_sign_in_are_public",
    "unit/control/test_roles.py",
    "system/test_tenants.py",
)
REDIS_AWAY = ("gateway/test_shared_cache.py", "system/test_serve_cache.py")
STAND_STILL = {"control": "the control plane", "agent": "an agent", "keeper": "a keeper"}


@dataclass(frozen=True)
class Sizes:
    """Sizes of the long rows: seconds without a control plane, number of its kills, number of inputs for the readers,
    minutes of churn, seconds for which a process is stopped, and number of nodes that reconnect.
    """

    outage: float = 5.0
    kills: int = 100
    inputs: int = 100_000
    soak: float = 10.0
    pause: float = 60.0
    nodes: int = 1000


QUICK = Sizes(kills=10, inputs=1000, soak=1.0, pause=4.0, nodes=100)


def cases(sizes: Sizes) -> list[Case]:
    """Return the cases in row order. Rows without a case are tested elsewhere, or need more than one machine."""
    long = f"{processes.EVENTS:,} events in its log"
    away = functools.partial(processes.outage, sizes.outage)
    at_random = functools.partial(processes.killed_at_random, sizes.kills)
    both = f"{BY_EVENTS}; back: {BY_CLOCK}"
    theirs = {
        "raises": ("raises", "LookupError"),
        "loops": ("spins", "no plan within"),
        "takes 10 s": ("waits", "no plan within"),
        "returns nonsense": ("no-plan", "not a Plan"),
        "over-allocates": ("lies", "devices"),
    }
    return [
        Case(1, "kill -9 of a command", processes.command_killed, BY_EVENTS, 1.0, 5.0),
        Case(1, "kill -9 of a member of a gang", processes.member_killed, BY_EVENTS, 1.0, 5.0),
        Case(1, "kill -9 of a worker of training", work.worker_killed, BY_EVENTS, 1.0, 30.0),
        Case(1, "SIGTERM of a worker of training", work.worker_asked_to_end, BY_EVENTS, None, 30.0),
        tested(1, "kill -9 of a keeper whose command has escaped", *ESCAPED, checks="S4 S5"),
        Case(2, "kill -9 of the agent", processes.agent_killed, BY_CLOCK, 10.0, 5.0),
        Case(2, "kill -9 of the agent, back after it was given up", processes.agent_away, both, 10.0, 5.0),
        Case(3, "a node is gone, of two on this machine", machines.machine_gone, BY_EVENTS, 3.0, 2.0),
        Case(3, "a machine is gone, of two on a network", machines.machine_gone_apart, BY_EVENTS, 10.0, 2.0),
        Case(4, f"kill -9 of the control plane, {long}", processes.control_killed, BY_CLOCK, None, 3.0, "S3"),
        Case(4, f"the control plane is away for {sizes.outage:g} s", away, BY_CLOCK, None, 3.0),
        Case(
            4,
            f"the control plane killed {sizes.kills} times, under load",
            at_random,
            BY_CLOCK,
            None,
            3.0,
            "S3 S5",
            once=True,
        ),
        Case(
            5,
            f"kill -9 at each of {len(STEPS)} steps of a commit",
            processes.killed_at_each_step,
            BY_CLOCK,
            None,
            3.0,
            "S3 S5",
        ),
        *(
            Case(6, f"a network is cut, {which}", functools.partial(machines.partition, which), both, 10.0, 10.0)
            for which in machines.PARTITIONS
        ),
        Case(6, f"a network comes and goes {machines.FLAPS} times", machines.flapping, BY_CLOCK, None, 10.0),
        Case(6, f"the network of all nodes fails for {machines.ALL_CUT:g} s", machines.all_cut, BY_CLOCK, None, 10.0),
        Case(6, "a network is cut, `lease: exclusive`", machines.exclusive, BY_CLOCK, 10.0, None, "S5"),
        Case(8, "the wall clock jumps by an hour, ahead and back", clocks.wall_clock_jumps, BY_CLOCK, None, 10.0),
        *(
            Case(
                8,
                f"{whose} stands still for {sizes.pause:g} s",
                functools.partial(clocks.stands_still, what, sizes.pause),
                both,
                recover=10.0,
            )
            for what, whose in STAND_STILL.items()
        ),
        Case(9, "the log's disk is full", disks.disk_full, f"{BY_CLOCK}: one refused `poise submit`", None, 5.0, "S3"),
        Case(9, "a node's disk is full, its agent and keepers killed", disks.node_disk_full, BY_CLOCK, None, 5.0, "S4"),
        tested(9, "a keeper's disk is full", *KEEPERS_DISK),
        Case(10, f"{disks.FLIPS} flipped bits", disks.bits_flipped, f"{BY_CLOCK}: one refused `poise up`"),
        Case(10, "a torn tail", disks.tail_torn, f"{BY_CLOCK}: one `poise up`", checks="S3"),
        Case(
            10,
            "a log cut before what was acknowledged",
            disks.log_cut,
            f"{BY_CLOCK}: one refused `poise up`",
            checks="S3",
        ),
        Case(12, "a command exceeds its memory", work.memory_exceeded, BY_EVENTS, 1.0, 5.0),
        Case(12, "a command exceeds its memory each time", work.memory_always_exceeded, BY_EVENTS),
        Case(14, "a command hangs, `hang: 2s`", work.hung, BY_EVENTS, 60.0, 60.0),
        tested(14, "an evaluation takes longer than a step", *EVALUATIONS),
        Case(15, "one of many parts runs at half its speed", work.half_speed, BY_EVENTS, 60.0),
        Case(16, "one device of three goes and comes back", machines.device_goes, BY_EVENTS, 5.0, ONE_ROUND),
        Case(16, "another machine under the same name", machines.another_under_its_name, BY_EVENTS, 5.0, ONE_ROUND),
        Case(17, "a second control plane", processes.second_control_plane, BY_CLOCK),
        Case(17, "a second control plane, the lock removed", processes.lock_removed, BY_CLOCK, checks="S3"),
        *(
            Case(
                17,
                f"the one that leads is killed, another stands by; {store}",
                functools.partial(others.leader_killed, store),
                BY_CLOCK,
                recover=5.0,
                checks="S3 S5",
            )
            for store in STORES
        ),
        tested(17, "the one that leads stands still, or is cut off", *STALE_LEADERS, checks="S3 S4 S5"),
        tested(18, "a checkpoint is torn or wrong, its writer killed", *CHECKPOINTS, checks="S9"),
        Case(19, "training gives room as it runs, and takes it back", work.resized, BY_CLOCK, None, 30.0),
        tested(19, "sizes change in a step, a checkpoint, twice; a rank dies", *RESIZES, checks="S2 S4"),
        Case(20, "kill -9 of a replica in the midst of a batch", gateways.replica_killed, BY_CLOCK, 1.0, 2.0, "S10"),
        Case(20, "kill -9 of a gateway", gateways.gateway_killed, BY_CLOCK, 1.0, 2.0, "S10"),
        Case(20, "kill -9 of a gateway and of what watches it", gateways.both_killed, BY_CLOCK, recover=5.0),
        tested(20, "slow, overloaded, poisoned, left by its clients", *SERVING, checks="S10"),
        Case(
            21,
            f"{sizes.inputs:,} spoilt inputs",
            functools.partial(inputs.bad_inputs, sizes.inputs),
            BY_CLOCK,
            once=True,
        ),
        tested(22, "input too large or too deep", *TOO_LARGE),
        tested(23, "slow clients", *SLOW_CLIENTS),
        tested(24, "no token, a wrong one, another tenant's", *STRANGERS, checks="S8"),
        Case(
            25,
            f"{sizes.nodes:,} nodes come back, and 10 times as many jobs",
            functools.partial(others.herd_comes_back, sizes.nodes, 10 * sizes.nodes),
            BY_CLOCK,
            recover=15.0,
        ),
        tested(26, "logs of earlier versions", "golden/test_golden.py", checks="S7"),
        *(
            Case(
                27,
                f"a policy {what}",
                functools.partial(policies.policy_fails, *policy),
                BY_EVENTS,
                ONE_ROUND,
                ONE_ROUND,
            )
            for what, policy in theirs.items()
        ),
        *(
            Case(
                28,
                f"the store of the log is away for {others.AWAY:g} s; {store}",
                functools.partial(others.store_away, store),
                BY_CLOCK,
                10.0,
                10.0,
                "S3 S5",
            )
            for store in STORES
        ),
        Case(28, "the machine of Ray's head is gone", others.ray_head_away, BY_EVENTS, 10.0, 10.0),
        tested(28, "the Redis of gateways is away", *REDIS_AWAY, checks="S10"),
        Case(
            29,
            f"{sizes.soak:g} minutes of churn with a killer",
            functools.partial(soak.soak, sizes.soak),
            BY_CLOCK,
            once=True,
        ),
    ]


def measure(rows: Sequence[int], repeats: int, sizes: Sizes, *, with_peers: bool) -> list[Figure]:
    """Run all turns of the cases of these rows; of all rows if none are given."""
    figures = []
    for case in cases(sizes):
        if not rows or case.row in rows:
            figures += done(case, repeats)
            say(matrix(figures[-3:]).rpartition("\n")[2])
    return figures + (beside.measure(min(repeats, PEER_TURNS)) if with_peers else [])


def done(case: Case, repeats: int) -> list[Figure]:
    """Return the figures of a case: noticed, recovered, and broken promises, over all turns."""
    name = f"fault {case.row}: {case.fault}"
    turns: list[Turn] = []
    broken: list[str] = []
    kept: set[str] = set()
    for _ in range(1 if case.once else repeats):
        stage = Stage()
        try:
            turn = case.turn(stage)
            turns.append(turn)
            for home in (stage, *turn.homes):
                found = verdict.of(home, case.checks)
                broken += [" ".join(story.split()) for story in found.values() if story]
                kept |= set(found)
        except (NotHere, pytest.skip.Exception) as why:
            return [harness.absent(name, str(why))]
        except Exception as failure:  # any exception fails this row; the others still run
            if not isinstance(failure, AssertionError | PoiseError):
                traceback.print_exc()
            broken.append(" ".join(str(failure).split()) or type(failure).__name__)
        finally:
            stage.destroy()
    for story in broken:
        say(f"{name}: BROKEN: {story}")
    noticed = [round(value, 4) for turn in turns for value in turn.noticed]  # observers are no more precise
    recovered = [round(value, 4) for turn in turns for value in turn.recovered]
    figures = []
    if noticed:
        figures.append(Figure(name=f"{name}, noticed", unit="s", values=noticed, limit=case.notice, note=case.by))
    if recovered:
        figures.append(Figure(name=f"{name}, recovered", unit="s", values=recovered, limit=case.recover, note=case.by))
    held = f"{KEPT}{' '.join(one for one in verdict.PROMISES if one in kept)}" if kept else HELD
    note = broken[0][:200] if broken else held
    count = float(len(broken))
    figures.append(Figure(name=f"{name}, promises broken", unit="", values=[count], limit=0.0, note=note))
    return figures


# --- the matrix ------------------------------------------------------------------------------------------------------

KINDS = ("noticed", "recovered", "promises broken")


def matrix(figures: Sequence[Figure]) -> str:
    """Format a line for each fault: times with their targets, and the kept promises. Other figures follow unchanged."""
    rows: dict[str, dict[str, str]] = {}
    others = []
    for figure in figures:
        fault, _, kind = figure.name.rpartition(", ")
        if not figure.name.startswith("fault "):
            others.append(figure)
        elif kind in KINDS:
            rows.setdefault(fault, {})[kind] = _kept(figure) if kind == KINDS[-1] else _seconds(figure)
        else:
            rows[figure.name] = {KINDS[-1]: figure.note}
    heads = ("fault", "noticed", "recovered", "promises")
    cells = [(fault.removeprefix("fault "), *(found.get(kind, "") for kind in KINDS)) for fault, found in rows.items()]
    return "\n\n".join([harness.columns([heads, *cells]), *([harness.table(others)] if others else [])])


def _seconds(figure: Figure) -> str:
    number = harness.number
    text = f"{number(figure.median)} s [{number(min(figure.values))}-{number(max(figure.values))}]"
    return text if figure.limit is None else f"{text} ≤ {number(figure.limit)} s: {'yes' if figure.met else 'NO'}"


def _kept(figure: Figure) -> str:
    return figure.note if figure.met else f"{harness.number(figure.median)} BROKEN: {figure.note}"


def main() -> int:
    parser = argparse.ArgumentParser(description="faults done to a live Poise, timed and judged")
    sizes = Sizes()
    parser.add_argument("--rows", default="", help="rows of the matrix, with commas between [all]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--outage", type=float, default=sizes.outage, help="seconds without a control plane")
    parser.add_argument("--kills", type=int, default=sizes.kills, help="how often it is killed at random")
    parser.add_argument("--no-peers", action="store_true", help="without the peers under the same kills")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--inputs", type=int, default=sizes.inputs, help="how many spoilt inputs")
    parser.add_argument("--soak", default=f"{sizes.soak:g}m", help="how long there is churn with a killer")
    parser.add_argument("--pause", type=float, default=sizes.pause, help="seconds for which a process stands still")
    parser.add_argument("--nodes", type=int, default=sizes.nodes, help="how many nodes come back at once")
    options = parser.parse_args()
    rows = [int(row) for row in options.rows.split(",") if row]
    soaked = parse_duration(options.soak) / MINUTE
    sizes = Sizes(options.outage, options.kills, options.inputs, soaked, options.pause, options.nodes)
    known = {case.row for case in cases(sizes)}
    if unknown := [str(row) for row in rows if row not in known]:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(map(str, sorted(known)))}")
    with_peers = not options.no_peers
    return harness.program(
        lambda: measure(rows, options.repeats, sizes, with_peers=with_peers), as_json=options.json, show=matrix
    )


if __name__ == "__main__":
    sys.exit(main())
