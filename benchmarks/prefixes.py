"""Compare routers before servers that keep the prompts they have read, in virtual time: mean and P99 of each.

    python benchmarks/prefixes.py [--trace conversation_trace.jsonl] [--servers 4,5,6] [--cache 2000000]
        [--writing 1] [--limit 0] [--routers NAME,...] [--seed 1] [--json]

The trace is Mooncake's of conversations, of an hour (12,031 requests, github.com/kvcache-ai/Mooncake,
FAST25-release/traces, Apache-2.0), which has the identity of prefixes. Its instants are in steps of 3 s; requests are
spread over these. The servers are equal, as fast as Llama-2-70B on eight H100 (`examples/rehearsed-servers.yaml`).
They read one prompt after the other, only what follows the longest prefix that they keep, and write answers side by
side. With `--writing 0.25`, a token takes a quarter of the time, so that reading is most of the work. All routers get
the same requests. They know:

* `round-robin`, `least-outstanding`: what they need.
* `consistent-hash`: the first two blocks of a prompt, as key.
* `expected-delay, load alone`: work in flight and speeds as learned, but no prefixes.
* `expected-delay`: the same, and prefixes as learned from the prompts that it sent and from what answers tell.
* `expected-delay, exact`: what each server keeps and has to read, and how fast it is; not how long answers will be.
* `without prefixes`: the last two rows, on the same requests, with prompts that have nothing in common: knowing
  prefixes must cost nothing there.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import msgspec
from harness import percentile

from poise.drivers.yamlfile import load_kind
from poise.model.servers import Server, Serving
from poise.model.serving_upstreams import Front, compile_upstreams
from poise.model.worldfile import compile_world
from poise.units import SECOND
from poise_lab.engine.serving import FrontTwin, Open, Request
from poise_lab.traces.requests import calls
from poise_lab.traces.rows import Tally
from poise_serve.model.routing import Asked, Prompt, ReplicaView, RouteView
from poise_serve.policy.route import router_named

STEP = 3.0
"""Seconds between two instants of the trace."""

WARM_UP = 0.1
KEY = 2
"""Blocks of a prompt that are its key: the first is common to most."""

SPEEDS = Path(__file__).parents[1] / "examples" / "rehearsed-servers.yaml"
TRACE = Path(__file__).parents[2] / "shared" / "data" / "mooncake-fast25" / "conversation.csv"


class ByLoad(FrontTwin):
    """A router that does not look at prompts."""

    def _prompt(self, request: Request) -> Prompt | None:
        return Prompt(float(request.prompt), streams=True)


class Exactly(FrontTwin):
    """A router that knows the servers, and the mean length of answers."""

    def _view(self, waiter: Any, members: Iterable[Any]) -> RouteView:
        request, now = self._open[waiter.number], self.now
        replicas = []
        for one in members:
            ahead = [self._open[number] for number in (*one.to_read, *one.waiting)]
            reading = max(0, one.reading - now) if one.reading >= 0 else 0
            rest = ahead[1:] if one.reading >= 0 else ahead
            backlog = reading + sum(one.speed.reading_takes(one.to_be_read(other)) for other in rest)
            reads = one.speed.reading_takes(one.to_be_read(request))
            writes = one.speed.steps_take(one.running + 1, MEAN_TOKENS)
            replicas.append(
                ReplicaView(
                    one.name,
                    outstanding=one.running,
                    backlog=int(backlog),
                    cost=int(reads + writes),
                    open=one.has_room(now),
                )
            )
        return RouteView(now, Asked(), tuple(replicas), waiter.turn)


MEAN_TOKENS = 343.0


def requests_of(path: Path, limit: int, seed: int, *, alike: bool = True) -> list[Request]:
    """Return the requests; without `alike`, no two prompts have a block in common."""
    random, found = Random(f"{seed} steps"), sorted(calls("mooncake", path, Tally(path, strict=True)))
    found = found[: limit or None]
    fresh = iter(range(10**9))
    made = []
    for call in found:
        at = round((call.at - found[0].at + random.uniform(0, STEP)) * SECOND)
        blocks = call.blocks if alike else tuple(next(fresh) for _ in call.blocks)
        key = " ".join(map(str, blocks[:KEY]))
        made.append(Request(at, 1.0, call.prompt, call.tokens, float(call.prompt), key, blocks))
    return sorted(made)


def compared(
    requests: Sequence[Request],
    bare: Sequence[Request],
    servers: int,
    cache: int,
    writing: float,
    seed: int,
    wanted: Sequence[str],
) -> dict[str, dict[str, float]]:
    """Return the figures of each router, in seconds."""
    world = compile_world(load_kind(SPEEDS, "world"))
    if world.serving is None:
        raise AssertionError("the world has servers")
    speed = world.serving.servers[0].speed
    speed = msgspec.structs.replace(speed, step=tuple((many, writing * takes) for many, takes in speed.step))
    names = [f"s{at}" for at in range(servers)]
    serving = Serving(servers=tuple(Server(name=name, speed=speed, cache=cache) for name in names))
    front = compile_upstreams(
        {
            "kind": "upstreams",
            "upstreams": [{"name": name, "url": "gpu:1", "limit": 100_000} for name in names],
            "timeout": "1d",
            "ejection": {"slower": 0},
        }
    )
    rows: dict[str, tuple[Callable[..., FrontTwin], str, Sequence[Request]]] = {
        "round-robin": (FrontTwin, "round-robin", requests),
        "least-outstanding": (FrontTwin, "least-outstanding", requests),
        "consistent-hash": (FrontTwin, "consistent-hash", requests),
        "expected-delay, load alone": (ByLoad, "expected-delay", requests),
        "**expected-delay**": (FrontTwin, "expected-delay", requests),
        "expected-delay, exact": (Exactly, "expected-delay", requests),
        "without prefixes, load alone": (ByLoad, "expected-delay", bare),
        "**without prefixes, expected-delay**": (FrontTwin, "expected-delay", bare),
    }
    found = {}
    for name, (twin, router, asked) in rows.items():
        if not wanted or any(one in name for one in wanted):
            found[name] = figures(twin, front, serving, router, asked, seed)
    return found


def figures(
    twin: Callable[..., FrontTwin], front: Front, serving: Serving, router: str, requests: Sequence[Request], seed: int
) -> dict[str, float]:
    trial = twin(front, serving, Open(requests), router_named(router), seed=seed)
    stories = sorted(trial.run(), key=lambda story: story.came)
    took = [story.took / SECOND for story in stories[int(WARM_UP * len(stories)) :]]
    return {"mean": fmean(took), "p50": percentile(took, 50), "p99": percentile(took, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--servers", default="4,5,6")
    parser.add_argument("--cache", type=int, default=2_000_000, help="tokens that a server keeps")
    parser.add_argument("--writing", type=float, default=1.0, help="factor of the time to write a token")
    parser.add_argument("--limit", type=int, default=0, help="the first requests of the trace; 0: all")
    parser.add_argument("--routers", default="", help="rows whose names contain one of these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    requests = requests_of(given.trace, given.limit, given.seed)
    bare = requests_of(given.trace, given.limit, given.seed, alike=False)
    wanted = [one for one in given.routers.split(",") if one]
    found = {
        servers: compared(requests, bare, servers, given.cache, given.writing, given.seed, wanted)
        for servers in map(int, given.servers.split(","))
    }
    if given.json:
        print(json.dumps(found))
        return
    print("| mean / P50 / P99 in s | " + " | ".join(f"{servers} servers" for servers in found) + " |")
    print("| --- |" + " --- |" * len(found))
    for name in next(iter(found.values())):
        cells = (column[name] for column in found.values())
        print(
            f"| {name} | "
            + " | ".join(f"{one['mean']:.3g} / {one['p50']:.3g} / {one['p99']:.3g}" for one in cells)
            + " |"
        )


if __name__ == "__main__":
    main()
