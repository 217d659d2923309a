"""A gang of real processes on two nodes that grows, shrinks and loses members: who stays goes on as it is."""

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from system.living import Living, kill, until

FLEET = "kind: fleet\nname: pair\nnodes: {n: {count: 2, cpu: 2, memory: 4GiB}}\n"

MEMBER = """
import json, os, signal, sys, time
from pathlib import Path

folder, me = Path(os.environ["POISE_GANG_DIR"]), os.environ["POISE_TASK"].partition(".")[2]
epoch, orders, report = os.environ["POISE_EPOCH"], Path(os.environ["POISE_ORDERS"]), Path(os.environ["POISE_REPORT"])

def say(what):
    with open(sys.argv[1], "a") as file:
        who = {"task": me, "pid": os.getpid(), "epoch": int(epoch), "folder": str(folder)}
        file.write(json.dumps(who | what) + "\\n")

def leave(*_):
    say({"left": True})
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
first = {"generation": "POISE_GENERATION", "world": "POISE_WORLD_SIZE", "rank": "POISE_RANK"}
say({"began": {name: int(os.environ[of]) for name, of in first.items()}})
known = None
report.with_suffix(".new").write_text(json.dumps({"step": 1, "resizes": True}))
report.with_suffix(".new").replace(report)
while True:
    told = json.loads(orders.read_text())
    if told != known:
        known = told
        say({"told": told})
    time.sleep(0.02)
"""

GANG = """
kind: job
name: train
run: exec python3 {program} {diary}
workers: 1..4
resources: {{cpu: 1}}
priority: low
expect: 1h
checkpoint: 1s
"""

URGENT = "kind: job\nname: now\nrun: sleep 3\nresources: {cpu: 1}\npriority: urgent\nexpect: 3s\n"


class Gang:
    """What the members of the gang have written down."""

    def __init__(self, living: Living) -> None:
        self.living = living
        self.diary = living.work / "diary"

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.diary.read_text().splitlines()] if self.diary.exists() else []

    def members(self) -> dict[str, dict[str, Any]]:
        """By task, what the members of the latest generation that all have heard of were told."""
        generations: dict[int, dict[str, dict[str, Any]]] = {}
        for entry in self.entries():
            if "told" in entry and entry["told"]["rank"] >= 0:
                generations.setdefault(entry["told"]["generation"], {})[entry["task"]] = entry
        for _, those in sorted(generations.items(), reverse=True):
            ranks = sorted(entry["told"]["rank"] for entry in those.values())
            if all(ranks == list(range(entry["told"]["world"])) for entry in those.values()):
                return those
        return {}

    @property
    def generation(self) -> int:
        return max((entry["told"]["generation"] for entry in self.members().values()), default=-1)

    def becomes(self, world: int, after: int = -1) -> dict[str, dict[str, Any]]:
        """Its members once they are so many, in a generation after this one."""
        found: list[dict[str, dict[str, Any]]] = []

        def is_so() -> bool:
            those = self.members()
            found.append(those)
            return len(those) == world and self.generation > after

        story = lambda: (self.entries()[-12:], self.living.poise("show", "train").text)  # noqa: E731
        until(is_so, f"the gang is of {world}", story)
        return found[-1]


@pytest.fixture(scope="module")
def gang() -> Iterator[Gang]:
    """Of four, on two nodes of two cores, and known to resize."""
    living = Living()
    try:
        living.file("fleet.yaml", FLEET)
        living.up("--port", "0", "--fleet", "fleet.yaml")
        until(lambda: len([node for node in living.client().nodes() if node.status == "up"]) == 2, "both have joined")
        made = Gang(living)
        program = living.file("member.py", MEMBER)
        living.file("train.yaml", GANG.format(program=program, diary=made.diary))
        living.file("now.yaml", URGENT)
        assert living.poise("submit", "train.yaml").code == 0
        made.becomes(4)
        until(lambda: living.poise("show", "train", "--json").value["training"], "it has said that it resizes")
        yield made
    except BaseException:
        living.destroy()
        raise
    living.close()


def same(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]], but: str = "") -> bool:
    """Whether all but one are the processes that they were, in the epochs in which they were started."""
    those = [(after[task]["pid"], after[task]["epoch"]) for task in before if task != but]
    return those == [(of["pid"], of["epoch"]) for task, of in before.items() if task != but]


def test_who_is_killed_is_replaced_and_the_others_go_on(gang: Gang) -> None:
    before = gang.members()
    lost = next(task for task, of in before.items() if of["told"]["rank"] == 0)
    generation = gang.generation
    kill(before[lost]["pid"], signal.SIGKILL)
    three = gang.becomes(3, generation)
    assert lost not in three
    assert same(before, three, but=lost)
    four = gang.becomes(4, generation)
    assert same(before, four, but=lost)
    assert four[lost]["epoch"] == before[lost]["epoch"] + 1
    assert four[lost]["told"]["rank"] == 3, "who stays keeps the order, and who joins comes last"
    began = [entry for entry in gang.entries() if entry["task"] == lost and "began" in entry][-1]
    assert began["began"] == four[lost]["told"]
    assert len({entry["folder"] for entry in gang.entries()}) == 1, "they meet where they always have"


def test_it_shrinks_for_what_is_urgent_and_grows_back(gang: Gang) -> None:
    before = gang.members()
    generation = gang.generation
    assert gang.living.poise("submit", "now.yaml").code == 0
    three = gang.becomes(3, generation)
    [left] = before.keys() - three.keys()
    assert same(before, three, but=left)
    until(lambda: any(of["task"] == left and "left" in of for of in gang.entries()), "it was told to leave, and did")
    assert gang.living.poise("wait", "now").code == 0
    four = gang.becomes(4, generation)
    assert same(before, four, but=left)
    assert "go on smaller" in gang.living.poise("explain", "train").text


def test_a_control_plane_that_is_killed_meanwhile_changes_nothing(gang: Gang) -> None:
    before, generation = gang.members(), gang.generation
    control = gang.living.pid("control")
    kill(control)
    lost = next(iter(before))
    kill(before[lost]["pid"], signal.SIGKILL)
    until(lambda: gang.living.pid("control") not in (0, control), "there is another control plane")
    four = gang.becomes(4, generation)
    assert same(before, four, but=lost)


def test_nothing_is_left_of_its_orders(gang: Gang) -> None:
    assert gang.living.poise("cancel", "train").code == 0
    gang.living.poise("wait", "train")
    nodes = gang.living.home.nodes
    until(lambda: not [*nodes.glob("*/keepers/results/*.orders*")], "their orders are gone")
    until(lambda: not [*gang.living.home.gangs.iterdir()], "their folder is gone")
