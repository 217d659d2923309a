"""Allocations that Slurm refuses, loses or does not start: Slurm is in memory, and time passes as a test says."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poise.errors import Fault
from poise.model.reports.demand import Demand, DemandReport
from poise.model.reports.status import Request
from poise.model.resources import SUBSTRATE, Shape, Where
from poise.units import SECOND
from poise_slurm import commands
from poise_slurm.allocations import State, known_allocations
from poise_slurm.cluster import IDLE_GUESS, PAUSES, UNLISTED_SECONDS, WAITING, SlurmCluster
from poise_slurm.commands import TAG, Job, Kind
from poise_slurm.settings import Settings

ONE = Demand(tasks=1, together=1, cpu=1000, memory=0, gpus=0, where="", work=SECOND, longest=2 * SECOND, unknown=0)
DEFAULT = Settings()
IDLE = DEFAULT.idle
WAITS = DemandReport(waits=(ONE,), busy={})


class Slurm:
    """It takes what is submitted, unless it `refuses`, or its answer is `lost`; and lists what it has."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.jobs: dict[str, Job] = {}
        self.submitted = 0
        self.nodes = 10
        self.asked: list[float] = []
        self.refuses = self.lost = self.away = False
        self.cancelled: list[str] = []

    def submit(self, script: str, options: Sequence[str]) -> str:
        if self.refuses:
            raise Fault("`sbatch` failed", have="Invalid account")
        self.submitted += 1
        tag = next(option.partition(TAG)[2] for option in options if TAG in option)
        job = Job(str(self.submitted), tag, "PENDING", 0, 0, "main", "Resources")
        self.jobs[tag] = job
        if self.lost:
            raise Fault("`sbatch` failed", have="Socket timed out")
        return job.id

    def queue(self) -> list[Job]:
        self.asked.append(self.time)
        if self.away:
            raise Fault("`squeue` failed", have="no answer")
        return list(self.jobs.values())

    def cancel(self, *jobs: str) -> None:
        self.cancelled += jobs

    def partitions(self) -> list[Kind]:
        self.asked.append(self.time)
        return [Kind("main", 86400, self.nodes, self.nodes, 16, 64 * 1024, 0)]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    for name in ("submit", "queue", "partitions", "cancel"):
        monkeypatch.setattr(commands, name, getattr(slurm, name))
    return slurm


def keeper(slurm: Slurm, folder: Path, settings: Settings = DEFAULT) -> SlurmCluster:
    return SlurmCluster(settings, folder, lambda: slurm.time, lambda: slurm.time)


def openings(cluster: SlurmCluster, work: Demand = ONE) -> list[tuple[int, int, bool]]:
    """The room that is quoted: tasks at once, delay in seconds, and whether it is requested already."""
    [quote] = cluster.quote([work])
    return [(one.slots, one.delay // SECOND, one.asked) for one in quote.openings]


def wait(slurm: Slurm, cluster: SlurmCluster, seconds: float, demand: DemandReport = WAITS) -> list[Request]:
    """The requests that are not met then."""
    unmet: list[Request] = []
    for _ in range(round(seconds)):
        slurm.time += 1
        unmet = cluster.want(demand)
    return unmet


def test_one_allocation_is_asked_for_however_long_it_waits(slurm: Slurm, tmp_path: Path) -> None:
    cluster = keeper(slurm, tmp_path)
    wait(slurm, cluster, 3600)
    assert slurm.submitted == 1
    assert all(sum(start <= at < start + 60 for at in slurm.asked) <= 2 for start in range(1000, 4600))


def test_no_more_than_some_allocations_wait_at_a_time(slurm: Slurm, tmp_path: Path) -> None:
    """More are asked for only when those have begun: they would stand in the queue of everybody else."""
    much = msgspec.structs.replace(ONE, tasks=1000, cpu=16_000, work=1000 * 3600 * SECOND, longest=3600 * SECOND)
    slurm.nodes = 1000
    cluster, demand = keeper(slurm, tmp_path, Settings(nodes=100)), DemandReport(waits=(much,), busy={})
    wait(slurm, cluster, 600, demand)
    assert slurm.submitted == WAITING
    for one in list(known_allocations(tmp_path / "allocations"))[:2]:
        one.say(0, 0, State(host="n", job=one.job(), cpus=16, memory=512, devices=(), until=slurm.time + 36000))
    wait(slurm, cluster, 600, demand)
    assert slurm.submitted == WAITING + 2


def test_an_answer_that_is_lost_is_found_by_its_tag_and_nothing_is_submitted_twice(
    slurm: Slurm, tmp_path: Path
) -> None:
    slurm.lost = True
    wait(slurm, keeper(slurm, tmp_path), 5)
    slurm.lost = False
    cluster = keeper(slurm, tmp_path)  # as after a crash
    wait(slurm, cluster, 600)
    assert slurm.submitted == 1
    assert [one.job() for one in known_allocations(tmp_path / "allocations")] == ["1"]


def test_what_was_never_submitted_is_forgotten_and_asked_for_again(slurm: Slurm, tmp_path: Path) -> None:
    slurm.refuses = True
    wait(slurm, keeper(slurm, tmp_path), 5)
    slurm.refuses = False
    [before] = known_allocations(tmp_path / "allocations")
    wait(slurm, keeper(slurm, tmp_path), UNLISTED_SECONDS + 120)
    assert not before.folder.exists()
    assert slurm.submitted == 1


def test_an_allocation_in_which_no_pilot_begins_is_asked_for_again_more_and_more_rarely(
    slurm: Slurm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = keeper(slurm, tmp_path)
    for _ in range(3600):
        slurm.time += 1
        cluster.want(WAITS)
        for one in known_allocations(tmp_path / "allocations"):
            (one.folder / "pilot.log").write_text("python: not found\n")
        slurm.jobs.clear()
    assert 3 <= slurm.submitted <= len(PAUSES) + 1
    assert "no pilot has begun: python: not found" in caplog.text


def test_an_allocation_whose_job_has_begun_is_a_machine_until_it_ends(slurm: Slurm, tmp_path: Path) -> None:
    cluster = keeper(slurm, tmp_path)
    wait(slurm, cluster, 3)
    [one] = known_allocations(tmp_path / "allocations")
    one.say(0, 0, State(host="n7", job="1", cpus=2, memory=512, devices=(), until=slurm.time + 600))
    [machine] = cluster.machines()
    assert (machine.name, machine.size["cpu"], machine.leaving) == ("n7", 2.0, False)
    slurm.time += 541
    [machine] = cluster.machines()
    assert machine.leaving, "it ends in less than a minute"
    slurm.time += 60
    assert cluster.machines() == []


def test_it_is_told_which_allocation_waits_and_why_until_its_pilot_begins(slurm: Slurm, tmp_path: Path) -> None:
    cluster = keeper(slurm, tmp_path)
    assert wait(slurm, cluster, 2) == [Request(text="job 1, 1 node of main: submitted")]
    [job] = slurm.jobs.values()
    slurm.jobs[job.tag] = job._replace(start=5000, reason="Priority")
    [request] = wait(slurm, cluster, 60)
    assert request == Request(text="job 1, 1 node of main: pending, Priority", starts=5000)
    assert request.sentence(4400.0) == "job 1, 1 node of main: pending, Priority, expected to start in 10m0s"
    assert request.sentence(5001.0) == "job 1, 1 node of main: pending, Priority"
    assert wait(slurm, cluster, 1, DemandReport(waits=(), busy={})) == [], "nothing waits for it any more"
    [one] = known_allocations(tmp_path / "allocations")
    one.say(0, 0, State(host="n7", job="1", cpus=2, memory=512, devices=(), until=slurm.time + 600))
    assert wait(slurm, cluster, 1) == []


def test_it_is_told_which_work_can_have_no_allocation(slurm: Slurm, tmp_path: Path) -> None:
    large = msgspec.structs.replace(ONE, tasks=3, cpu=64_000)
    unmet = wait(slurm, keeper(slurm, tmp_path), 3, DemandReport(waits=(large,), busy={}))
    text = "no allocation for 3 tasks: no partition has such nodes: 64 CPU, 0 MiB, 0 GPU"
    assert unmet == [Request(text=text, refused=True)]


def test_it_is_told_why_sbatch_refuses(slurm: Slurm, tmp_path: Path) -> None:
    slurm.refuses = True
    [request] = wait(slurm, keeper(slurm, tmp_path), 5)
    assert request.refused
    assert request.text == "`sbatch` failed: Invalid account; Poise asks again 15 s later"


def test_the_delay_of_an_allocation_is_guessed_learned_and_remembered(slurm: Slurm, tmp_path: Path) -> None:
    cluster = keeper(slurm, tmp_path)
    assert openings(cluster) == [(8 * 16, IDLE_GUESS, False)]
    wait(slurm, cluster, 42)
    assert openings(cluster)[0] == (1, 40, True), "it has waited for longer than expected, and will as long again"
    assert openings(cluster)[1][1:] == (40, False), "another one would start after it"
    [one] = known_allocations(tmp_path / "allocations")
    one.say(0, 0, State(host="n7", job="1", cpus=1, memory=2048, devices=(), until=slurm.time + 600))
    wait(slurm, cluster, 1)
    assert openings(cluster) == [(1, 0, True), (7 * 16, 41, False)]
    assert openings(keeper(slurm, tmp_path)) == openings(cluster)


def test_slurms_own_estimate_is_the_delay_of_a_requested_allocation(slurm: Slurm, tmp_path: Path) -> None:
    cluster = keeper(slurm, tmp_path)
    wait(slurm, cluster, 2)
    [job] = slurm.jobs.values()
    slurm.jobs[job.tag] = job._replace(start=round(slurm.time) + 3600)
    wait(slurm, cluster, 60)
    assert openings(cluster)[0] == (1, 3540, True)


def test_an_allocation_for_which_no_work_waits_any_more_is_cancelled_before_it_starts(
    slurm: Slurm, tmp_path: Path
) -> None:
    cluster = keeper(slurm, tmp_path)
    wait(slurm, cluster, 2)
    large = DemandReport(waits=(msgspec.structs.replace(ONE, cpu=2000),), busy={})
    wait(slurm, cluster, IDLE, large)
    assert slurm.cancelled == []
    wait(slurm, cluster, 2, large)
    assert slurm.cancelled == ["1"]
    assert slurm.submitted == 2, "the other work needs a larger one"


def test_an_allocation_that_was_withdrawn_after_a_long_time_is_expected_to_take_longer(
    slurm: Slurm, tmp_path: Path
) -> None:
    cluster = keeper(slurm, tmp_path)
    wait(slurm, cluster, 300)
    wait(slurm, cluster, IDLE + 2, DemandReport(waits=(), busy={}))
    assert slurm.cancelled == ["1"]
    [(_, left, _)] = openings(cluster)
    assert 2 * 290 <= left <= 2 * 300


def test_slurm_that_does_not_answer_has_only_the_room_that_is_there(slurm: Slurm, tmp_path: Path) -> None:
    cluster = keeper(slurm, tmp_path)
    wait(slurm, cluster, 2)
    slurm.away = True
    wait(slurm, cluster, 60)
    [quote] = cluster.quote([ONE])
    assert (quote.openings, quote.why) == ((), "`squeue` failed: no answer")
    slurm.away = False
    wait(slurm, cluster, 60)
    assert openings(cluster)[0][2]


def test_work_that_asks_for_this_substrate_alone_has_room_and_for_a_node_it_has_not(
    slurm: Slurm, tmp_path: Path
) -> None:
    def on(**of: Any) -> Demand:
        where = Where(**of)
        return msgspec.structs.replace(ONE, where=where.describe(), shape=Shape(cpu=1000, where=where))

    cluster = keeper(slurm, tmp_path)
    assert openings(cluster, on(labels=((SUBSTRATE, ("slurm",)),)))
    assert not openings(cluster, on(labels=((SUBSTRATE, ("kubernetes",)),)))
    assert not openings(cluster, on(without_labels=((SUBSTRATE, ("slurm",)),)))
    assert not openings(cluster, on(nodes=("n7",)))
    wait(slurm, cluster, 10)
    assert openings(cluster)[0][2], "an allocation is requested"
    assert not openings(cluster, on(labels=((SUBSTRATE, ("kubernetes",)),))), "its allocation is on Slurm too"
