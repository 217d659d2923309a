"""Measure the time without a leader: the leader of two control planes on one store is killed repeatedly under load.

    python benchmarks/standby.py [--store postgres|etcd] [--kills 50] [--json]

One machine, two state directories, and a real PostgreSQL or three members of a real etcd. While short jobs are
submitted in sequence, the leading control plane is killed together with its supervisor (SIGKILL), so that it is not
restarted: as if its machine were lost, except for the node's agent. *leads*: until the other one accepts work.
*acknowledged*: until a job that was not yet sent at the kill is acknowledged. *scheduled*: until a job that is
submitted then has run. Then the killed control plane is restarted as standby, and the other one is killed next. In the
end, every acknowledged job must have run exactly once, over all attempts.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from harness import Figure, absent, program, say

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

LIMIT = 5.0
BETWEEN = 10
"""Minimum number of acknowledged jobs between two kills."""


def one_kill(pair: Any, load: Any, number: int) -> tuple[float, float, float]:
    """Return the seconds until the other one leads, until it acknowledges a job, and until a job has run."""
    from system.living import PATIENCE, kill, until

    leader = until(lambda: next(filter(pair.leads, (pair.first, pair.second)), None), "one leads")
    other = pair.second if leader is pair.first else pair.first
    until(lambda: pair.stands_by(other), "the other one stands by", pair.story)
    load.wait_for(BETWEEN)
    before = len(load.acknowledged)
    kill(leader.pid("supervisor"))
    kill(leader.pid("control"))
    begun = time.monotonic()
    until(lambda: pair.leads(other), "the other one leads", pair.story)
    leads = time.monotonic() - begun
    until(lambda: len(load.acknowledged) > before + 1, "more are acknowledged", pair.story)
    acknowledged = time.monotonic() - begun
    client = pair.client()
    client.wait(client.submit({"run": ["true"], "resources": {"cpu": 0.1}}, key=f"probe {number}"), PATIENCE)
    scheduled = time.monotonic() - begun
    leader.up(*(() if leader is pair.first else ("--no-agent",)))
    return leads, acknowledged, scheduled


def measure(store: str, kills: int) -> list[Figure]:
    from drivers import etcd_server, postgres_server
    from system.living import Diary
    from system.test_standby import Load, Pair

    found: list[tuple[float, float, float]] = []
    with etcd_server.running() if store == "etcd" else postgres_server.running() as server:
        pair = Pair(server)
        try:
            diary = Diary(pair.first.work / "diary")
            with Load(pair, diary) as load:
                for number in range(kills):
                    found.append(one_kill(pair, load, number))
                    say(f"kill {number + 1}: " + ", ".join(f"{taken:.2f} s" for taken in found[-1]))
            load.check_diary()  # the control plane itself forgets jobs that ended long ago
            pair.close()
        finally:
            pair.first.destroy()
            pair.second.destroy()
            pair.wire.close()
    note = f"{kills} kills, {len(load.acknowledged):,} jobs acknowledged, each has run once"
    names = ("the other one leads", "a job is acknowledged", "a job has run")
    return [
        Figure(name=f"leader killed, {store}: {name}", unit="s", values=list(taken), limit=LIMIT, note=note)
        for name, taken in zip(names, zip(*found, strict=True), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["postgres", "etcd"], default="postgres")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()

    def figures() -> list[Figure]:
        import pytest

        try:
            return measure(given.store, given.kills)
        except pytest.skip.Exception as missing:
            return [absent(f"leader killed, {given.store}: the other one leads", str(missing))]

    raise SystemExit(program(figures, as_json=given.json))


if __name__ == "__main__":
    main()
