"""Measure the CPU time per event of each step of the live decision code: view, decide, verify, append, apply.

    python benchmarks/event_costs.py [--data ../shared/data] [--policies fifo,poise] [--first 0] [--jobs 3000]
        [--nodes 60] [--load 1.5] [--repeat 3] [--json]

The Philly trace runs in the twin, where the code of the live control plane decides. Its events go to a real log in
SQLite in a temporary folder: `append` is the work of the control plane's thread, `write` that of the log's thread.
`rest` is everything else: messages, launches, effects, the simulated nodes and the figures of the trial. All values are
microseconds of CPU per event of the log, from the run with the least total. Timing a step costs 0.5 µs.
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time, thread_time
from typing import Any
from unittest import mock

import msgspec
from quality import CASES

from poise.drivers.sqlite import SqliteStore
from poise.engine.twin import VirtualStore
from poise.kernel.controller import Settings, deciding
from poise.kernel.ledger import Ledger
from poise.model.events import Event, decode_event, encode_event
from poise.policy.suites import policy_named
from poise_lab.traces.formats import read_trace
from poise_lab.trial import simulate

STEPS = ("view", "decide", "verify", "append", "apply")


@contextlib.contextmanager
def timed(policy: Any, store: SqliteStore[Event]) -> Iterator[dict[str, float]]:
    """Within the context, add the CPU seconds of each step, and write and count all events in the store."""
    took = dict.fromkeys((*STEPS, "events"), 0.0)
    appended = VirtualStore.append

    def timing(step: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*arguments: Any, **named: Any) -> Any:
            began = thread_time()
            try:
                return call(*arguments, **named)
            finally:
                took[step] += thread_time() - began

        return timed_call

    write = timing("append", store.append)

    def append(self: VirtualStore, events: Sequence[Event], *, expected: int) -> int:
        took["events"] += len(events)
        write(events, expected=expected)
        return appended(self, events, expected=expected)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(Ledger, "snapshot", timing("view", Ledger.snapshot)))
        stack.enter_context(mock.patch.object(Ledger, "apply", timing("apply", Ledger.apply)))
        stack.enter_context(mock.patch.object(type(policy), "decide", timing("decide", type(policy).decide)))
        for name in ("verify_place", "verify_preempt", "verify_resize", "verify_hold"):
            stack.enter_context(mock.patch.object(deciding, name, timing("verify", getattr(deciding, name))))
        stack.enter_context(mock.patch.object(VirtualStore, "append", append))
        yield took


def run(given: argparse.Namespace, policy: str) -> dict[str, float]:
    """Return the microseconds per event by step."""
    case = CASES["philly"]
    options = msgspec.structs.replace(case.options, jobs=given.first + given.jobs, load=given.load)
    workload, nodes = read_trace(given.data / case.file, options), case.nodes()[: given.nodes]
    arrivals = workload.arrivals[given.first :]
    arrivals = tuple(msgspec.structs.replace(one, at=one.at - arrivals[0].at) for one in arrivals)
    workload = msgspec.structs.replace(workload, arrivals=arrivals)
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(
            Path(folder) / "log.db", encode_event, decode_event, call_soon=lambda call: call(), queue_limit=2**31
        )
        with contextlib.closing(store), timed(policy_named(policy), store) as took:
            began, all_of_it = thread_time(), process_time()
            result = simulate(workload, nodes, policy_named(policy), Settings())
            here = thread_time() - began
        all_of_it = process_time() - all_of_it
    events = took["events"]
    found = {step: 1e6 * took[step] / events for step in STEPS}
    found["write"] = 1e6 * (all_of_it - here) / events
    found["rest"] = 1e6 * (here - sum(took[step] for step in STEPS)) / events
    return found | {"all": 1e6 * all_of_it / events, "events_per_job": events / len(result.jobs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--policies", default="fifo,poise")
    parser.add_argument("--first", type=int, default=0, help="jobs of the trace that are left out before these")
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--nodes", type=int, default=60)
    parser.add_argument("--load", type=float, default=1.5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for policy in given.policies.split(","):
        best = min((run(given, policy) for _ in range(given.repeat)), key=lambda found: found["all"])
        rows.append({"policy": policy, **{name: round(value, 2) for name, value in best.items()}})
        if not given.json:
            print(f"{policy:8}" + "".join(f"  {name} {best[name]:.1f}" for name in best), flush=True)
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
