"""Policies of others, live: whatever they do, the fleet goes on, and the log says what they did."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from poise.control.decider import FAILED, IN_A_ROW, InlineDecider, WorkerDecider, try_out
from poise.drivers.plugins import Choice, build, choose, choose_split
from poise.engine.paired import FEWEST
from poise.errors import SpecError
from poise.model.decisions import Place, Plan
from poise.model.selection import Selection
from poise.model.times import Times
from poise.model.views import Snapshot
from poise.policy.suites import policy_named
from poise.ports import Decider
from poise.testing import World
from poise.units import MILLISECOND, SECOND
from system.living import PATIENCE, Living, alive, free_port, kill, until
from system.theirs import install, install_theirs

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder that holds an installed package of bad policies, and the example."""
    return packed(tmp_path)


def packed(folder: Path) -> Path:
    install_theirs(folder)
    example = ["[poise.policies]", "smallest-first = example_terms:SMALLEST_FIRST"]
    example += ["[poise.terms]", "solitude = example_terms:solitude"]
    example += ["[poise.rank_terms]", "compactness = example_terms:compactness"]
    install(folder, "example-terms", example)
    shutil.copy(EXAMPLES / "terms" / "example_terms.py", folder)
    return folder


def start(living: Living, packages: Path, policy: str | Path, within: str = "30s", **more: str) -> None:
    """With time enough to decide on the busiest machine, unless it is about time."""
    options = ["--port", "0", "--policy", policy, "--decide-within", within]
    done = living.poise("up", *options, PYTHONPATH=str(packages), **more)
    assert done.code == 0, done.err


def events(living: Living, kind: str) -> list[dict[str, Any]]:
    lines = living.poise("events").text.splitlines()
    found = [json.loads(line)["event"] for line in lines]
    return [event for event in found if event["type"] == kind]


def worker(living: Living) -> int:
    """The process of the worker that decides; 0 if there is none."""
    return next((pid for pid, line in living.processes().items() if "poise.control.decider" in line), 0)


KINDS = ("policy-failed", "placed")


# --- live ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fleets_of_theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Living]]:
    """For each time within which a policy has to decide, a home whose control plane finds the bad policies."""
    made: dict[str, Living] = {}
    packages = packed(tmp_path_factory.mktemp("packages"))

    def with_time(within: str) -> Living:
        if within not in made:
            made[within] = Living()
            start(made[within], packages, "fifo", within)
        return made[within]

    try:
        yield with_time
    except BaseException:
        for living in made.values():
            living.destroy()
        raise
    for living in made.values():
        living.close()


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("raises", "LookupError: I have no idea"),
        pytest.param("leaves", "its process ended with code 5", marks=pytest.mark.slow),
        ("ends", "its process ended with code 6"),
        ("crashes", "its process was killed by signal 11"),
        ("waits", "no plan within 300 ms"),
        ("spins", "no plan within 300 ms"),
        ("eats", ""),  # out of its room, or out of time
        pytest.param("no-plan", "gave a `list`, not a Plan", marks=pytest.mark.slow),
        ("wrong-type", "the plan is malformed: Expected `array`, got `str` - at `$.decisions`"),
        ("unknown", "no unit that waits named `j77.main`"),
        ("lies", "gets 1 devices of"),
    ],
)
def test_whatever_a_policy_does_the_fleet_goes_on(
    fleets_of_theirs: Callable[[str], Living], policy: str, says: str
) -> None:
    for_time = policy in ("waits", "spins", "eats")  # the others fail by themselves, however busy the machine is
    living = fleets_of_theirs("300ms" if for_time else "30s")
    control, before, placed_before = living.pid("control"), *(len(events(living, kind)) for kind in KINDS)
    done = living.poise("policy", "set", policy)
    assert done.code == 0, done.err
    began = time.monotonic()
    for number in range(2):
        done = living.poise("run", "--", "echo", str(number))
        assert (done.code, done.text) == (0, f"{number}\n"), done.err
    assert time.monotonic() - began < PATIENCE / 2
    failures = events(living, "policy-failed")[before:]
    assert failures and failures[0]["policy"].startswith(f"{policy}@")
    assert all(failure["error"].startswith(f"{FAILED}: ") for failure in failures)
    assert says in failures[0]["error"]
    assert [placed["why"]["policy"] for placed in events(living, "placed")[placed_before:]] == ["fifo"] * 2
    assert events(living, "remembered") == []
    assert living.pid("control") == control


def test_what_cannot_be_loaded_is_told_before_anything_starts(living: Living, packages: Path) -> None:
    (packages / "their_policies.py").write_text("import nothing_of_this_name\n")
    done = living.poise("up", "--policy", "raises", "--json", PYTHONPATH=str(packages))
    assert done.code == 1
    assert "`raises` of theirs 1.0 cannot be used: it cannot be imported" in done.error["message"]
    assert done.error["field"] == "poise.policies: raises = their_policies:RAISES"
    assert not living.processes()


def test_what_cannot_even_be_tried_is_told(living: Living, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    falls = living.poise("up", "--policy", "falls", PYTHONPATH=str(packages))
    assert (falls.code, "its process was killed by signal 11" in falls.err) == (1, True), falls.err
    assert not living.processes()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("POISE_HOME", str(living.home.root))  # so that its process is known
    with pytest.raises(SpecError) as raised:
        try_out(Choice(label="hangs@1", name="hangs", foreign=True), Times(policy_start=2 * SECOND))
    assert raised.value.record.need == "loaded and tried within 2.0 s"
    assert not living.processes()


def test_a_bad_term_is_a_failure_of_the_policy(living: Living, packages: Path) -> None:
    living.file("policy.yaml", "kind: policy\nname: ours\nscore: {bad-term: 1}\n")
    start(living, packages, "policy.yaml")
    assert living.poise("run", "--", "true").code == 0
    assert "the term `bad-term` gave something other" in events(living, "policy-failed")[0]["error"]


@pytest.mark.slow
def test_three_failures_in_a_row_and_it_rests(living: Living, packages: Path) -> None:
    start(living, packages, "raises")
    for _ in range(IN_A_ROW):
        before = len(events(living, "policy-failed"))
        until(lambda: worker(living), "a worker was started again")
        until(lambda: living.poise("run", "--", "true").code == 0
              and len(events(living, "policy-failed")) > before, "it failed once more")  # noqa: B023  # fmt: skip
    assert "3 times in a row: it rests for 1m0s" in events(living, "policy-failed")[-1]["error"]
    for _ in range(3):
        assert living.poise("run", "--", "true").code == 0
    assert len(events(living, "policy-failed")) == IN_A_ROW
    assert not worker(living)


def test_good_policies_of_others_decide(living: Living, packages: Path) -> None:
    start(living, packages, "smallest-first")
    assert living.client().status().policy.startswith("smallest-first@")
    assert living.poise("run", "--workers", "2", "--", "true").code == 0
    assert {placed["why"]["policy"] for placed in events(living, "placed")} == {"smallest-first"}
    assert living.poise("down").code == 0
    text = "kind: policy\nname: ours\nscore: {solitude: 1, fit: 0.1}\norder: {compactness: 1}\n"
    file = living.file("ours.yaml", text)
    start(living, packages, "ours.yaml")
    file.unlink()  # what it said is kept: the control plane may be started again at any time
    kill(living.pid("control"))
    assert living.poise("run", "--", "true").code == 0
    assert events(living, "placed")[-1]["why"]["policy"].startswith("ours@")
    assert events(living, "policy-failed") == []


def test_the_policy_is_set_while_poise_is_up(living: Living, packages: Path) -> None:
    """Running work continues, and the policy stays until another is set, whatever ends or starts meanwhile."""
    environment = {"PYTHONPATH": str(packages)}
    assert living.poise("up", "--port", "0", "--policy", "sjf", **environment).code == 0
    running = living.poise("submit", "--json", "--", "sleep", "600").value["job"]
    until(lambda: living.client().job(running).status == "running", "it runs")
    control = living.pid("control")
    assert living.poise("policy", "set", "fifo").code == 0
    assert (living.pid("control"), living.client().policy().policy) == (control, "fifo")
    kill(control)
    assert living.poise("run", "--", "true").code == 0
    assert events(living, "placed")[-1]["why"]["policy"] == "fifo"
    assert living.poise("down", "--leave").code == 0
    living.file("ours.yaml", "kind: policy\nname: ours\nscore: {solitude: 1, fit: 0.1}\n")
    assert living.poise("up", "--port", "0", **environment).code == 0
    assert living.client().status().policy == "fifo"
    done = living.poise("up", "--policy", "ours.yaml", **environment)
    assert done.code == 0, done.err
    assert living.poise("run", "--", "true").code == 0
    last = events(living, "placed")[-1]["why"]["policy"]
    assert last.startswith("ours@") and last == living.poise("policy", "show", "--json").value["policy"]
    shown = living.poise("policy", "show").text
    assert last in shown and '"solitude": 1' in shown
    assert living.client().job(running).tasks[0].epoch == 1
    assert living.client().job(running).status == "running"
    assert events(living, "policy-failed") == []
    assert [event["policy"] for event in events(living, "configured")] == ["fifo", last]


@pytest.mark.slow
def test_a_policy_in_shadow_is_compared_and_decides_nothing(living: Living, packages: Path) -> None:
    start(living, packages, "poise")
    assert living.poise("shadow").err.startswith("no policy is in shadow")
    assert living.poise("shadow", "start", "smallest-first").code == 0
    blocker = living.poise("submit", "--json", "--", "sleep", "600").value["job"]
    until(lambda: living.client().job(blocker).status == "running", "it runs")
    until(lambda: living.poise("shadow", "report", "--json").value["rounds"], "it is asked")
    assert living.poise("cancel", blocker).code == 0
    assert living.poise("run", "--", "true").code == 0
    told = living.poise("shadow", "stop", "smallest-first", "--json").value
    assert told["policy"].startswith("smallest-first@") and told["failed"] == 0
    assert told["same"] + len(told["differences"]) == told["rounds"]
    assert {placed["why"]["policy"] for placed in events(living, "placed")} == {"poise"}
    assert living.poise("shadow", "ls", "--json").value == []
    until(lambda: not worker(living), "its process has ended")
    until(lambda: not fleets(living), "nothing is simulated any more")


def fleets(living: Living) -> int:
    """The process of simulated fleets; 0 if there is none."""
    return next((pid for pid, line in living.processes().items() if "poise.control.worlds" in line), 0)


def test_a_policy_in_shadow_has_a_simulated_fleet_is_promoted_and_rolled_back(living: Living, packages: Path) -> None:
    """The process of the fleet is killed, and finds the same again; the control plane is, and the shadow goes on."""
    start(living, packages, "poise")
    assert living.poise("shadow", "start", "srtf").code == 0

    def jobs() -> int:
        shown = living.poise("shadow", "report", "--json")
        return int(shown.value["world"]["jobs"]) if shown.code == 0 and shown.value["world"] else -1

    until(lambda: fleets(living), "it runs")
    until(lambda: jobs() >= 0, "it has begun")
    for _ in range(FEWEST + 2):
        assert living.poise("submit", "--", "true").code == 0
    until(lambda: jobs() >= FEWEST, "it has seen them")
    report = living.poise("shadow", "report").text
    assert "mean completion" in report and "95% interval" in report
    seen, killed = jobs(), fleets(living)
    kill(killed)
    kill(living.pid("control"))
    until(lambda: fleets(living) not in (0, killed), "it was started again")
    until(lambda: jobs() >= seen, "it has found the same again")
    refused = living.poise("promote", "srtf", "--json")
    assert (refused.code, "may be no better" in refused.error["message"]) == (1, True), refused
    assert refused.error["hint"] == "`poise promote srtf --force`"
    assert living.client().policy().policy == "poise"
    assert living.poise("promote", "srtf", "--force").code == 0
    assert living.client().policy().policy == "srtf"
    assert living.poise("shadow", "ls", "--json").value == []
    assert living.poise("rollback").code == 0
    assert living.client().policy().policy == "poise"
    said = [line["what"] for line in living.poise("audit", "--json").value]
    assert any(
        text.startswith("set the policy to srtf (by force: its mean completion may be no better") for text in said
    )
    assert said[-1] == "set the policy to poise (rolled back)"


def test_a_policy_is_promoted_for_a_part_of_the_nodes_then_for_all_and_rolled_back(living: Living) -> None:
    """On two machines. The control plane is killed during the trial, and both policies decide on."""
    living.up("--listen", f"127.0.0.1:{free_port()}")
    address = next(line.split()[1] for line in living.poise("status").text.splitlines() if line.startswith("address"))
    token = living.file("token", living.poise("token", "add", "--tenant", "default", "--role", "node").text.strip())
    token.chmod(0o600)
    joined = living.poise("join", address, "--token-file", token, "--name", "second", "--home", living.root / "second")
    assert joined.code == 0, joined.err
    [first] = [node["name"] for node in living.poise("nodes", "--json").value if node["name"] != "second"]
    assert living.poise("shadow", "start", "fifo").code == 0
    for nodes, says in (
        ("third", "there is no node third"),
        (f"{first},second", "selects all nodes"),
        ("100%", "some of the nodes, not all"),
    ):
        refused = living.poise("promote", "fifo", "--nodes", nodes, "--force", "--json")
        assert (refused.code, says in refused.error["message"]) == (1, True), refused
        assert refused.error["field"] == "--nodes"
    assert events(living, "configured") == []
    done = living.poise("promote", "fifo", "--nodes", "second", "--force")
    assert "fifo decides for node second, and poise for the rest; `poise rollback` goes back" in done.err
    assert "fifo decides for node second, and poise for the rest" in living.poise("policy", "show").text
    assert living.poise("policy", "show", "--json").value["trial"]["on"] == ["second"]
    assert [one["policy"] for one in living.poise("shadow", "ls", "--json").value] == ["fifo"]
    kill(living.pid("control"))
    for node, policy in ((first, "poise"), ("second", "fifo")):
        assert living.poise("run", "--node", node, "--", "true").code == 0
        placed = events(living, "placed")[-1]
        assert (placed["spots"][0][0], placed["why"]["policy"]) == (node, policy)
    assert events(living, "policy-failed") == []
    assert living.poise("replay").code == 0
    until(lambda: living.poise("shadow", "ls", "--json").value, "the shadow was started again")
    assert living.poise("promote", "fifo", "--force").code == 0
    assert (living.client().policy().policy, living.client().policy().trial) == ("fifo", None)
    assert living.poise("shadow", "ls", "--json").value == []
    assert living.poise("rollback").code == 0
    assert living.client().policy().policy == "poise"
    said = [line["what"] for line in living.poise("audit", "--json").value if "decide for" in line["what"]]
    assert len(said) == 1 and said[0].startswith("let fifo decide for node second, and poise for the rest (by force")
    assert living.poise("join", "--undo", "--home", living.root / "second").code == 0


def test_a_bad_policy_in_shadow_harms_nobody(living: Living, packages: Path) -> None:
    start(living, packages, "poise", "300ms")
    for policy in ("waits", "ends", "lies"):
        assert living.poise("shadow", "start", policy).code == 0
        until(lambda: living.poise("run", "--", "true").code == 0
              and living.poise("shadow", "report", policy, "--json").value["failed"] > 0, "it has failed")  # noqa: B023  # fmt: skip
    refused = living.poise("shadow", "start", "fifo", "--json")
    assert (refused.code, refused.error["need"]) == (1, "at most 3"), "one that waits for ever is in a slot of its own"
    assert events(living, "policy-failed") == []
    assert {placed["why"]["policy"] for placed in events(living, "placed")} == {"poise"}


def test_a_policy_that_cannot_decide_is_not_set(living: Living, packages: Path) -> None:
    (packages / "their_policies.py").write_text("import nothing_of_this_name\n")
    start(living, packages, "poise")
    living.file("bad.yaml", "kind: policy\nname: ours\nscore: {fitt: 1}\n")
    for policy, says, where in (
        ("raises", "it cannot be imported", "poise.policies: raises"),
        ("nope", "there is no policy `nope`", "policy"),
        ("bad.yaml", "there is no term `fitt`", "score.fitt"),
    ):
        done = living.poise("policy", "set", policy, "--json")
        assert (done.code, says in done.error["message"]) == (1, True), done.err
        assert done.error["field"].startswith(where), done.error
    assert living.client().status().policy == "poise"
    assert events(living, "configured") == []


def test_a_policy_that_prints_is_not_misread(living: Living, packages: Path) -> None:
    start(living, packages, "prints")
    assert living.poise("run", "--", "true").code == 0
    assert events(living, "policy-failed") == []
    assert "x" * 10_000 in living.messages()


@pytest.mark.timed
def test_the_control_plane_answers_while_a_policy_thinks(living: Living, packages: Path) -> None:
    start(living, packages, "spins", "5s")
    client = living.client()
    client.status()
    job = living.poise("submit", "--json", "--", "true").value["job"]
    slowest, before = 0.0, _cpu(living.pid("control"))
    for _ in range(20):
        asked = time.monotonic()
        client.status()
        slowest = max(slowest, time.monotonic() - asked)
        time.sleep(0.05)
    assert slowest < 0.5
    assert _cpu(living.pid("control")) - before < 0.5, "it waits for the plan, and does not spin"
    assert living.poise("wait", job).code == 0


def _cpu(pid: int) -> float:
    """Seconds of CPU that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_worker_that_is_killed_is_started_again(living: Living, packages: Path) -> None:
    start(living, packages, "smallest-first")
    first = worker(living)
    kill(first)
    until(lambda: not alive(first), "it is dead")
    assert living.poise("run", "--", "true").code == 0
    assert "its process was killed by signal 9" in events(living, "policy-failed")[0]["error"]
    until(lambda: worker(living) not in (0, first), "another is there")
    until(lambda: living.poise("run", "--", "true").code == 0
          and events(living, "placed")[-1]["why"]["policy"] == "smallest-first", "it decides")  # fmt: skip
    assert len(events(living, "policy-failed")) == 1


def test_a_worker_does_not_outlive_its_control_plane(living: Living, packages: Path) -> None:
    start(living, packages, "spins", "60s")
    first = worker(living)
    living.poise("submit", "--", "true")
    time.sleep(0.3)
    kill(living.pid("control"))
    until(lambda: not alive(first), "it has ended, busy as it was", seconds=5)


# --- the decider by itself -------------------------------------------------------------------------------------------


def run(living_for: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(living_for())


async def plan_of(decider: Decider, view: Snapshot) -> Plan:
    found: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()
    decider.decide(view, found.set_result)
    return await asyncio.wait_for(found, PATIENCE)


def waiting() -> Snapshot:
    world = World().nodes(3, cpu=4, gpus=1).job("a", gpu=1).job("gang", workers=2).after("1s")
    world.job("b", cpu=3).job("c").job("too", workers=6, cpu=2)
    return world.ledger.snapshot(world.now)


def test_a_worker_answers_as_the_policy_does_inline() -> None:
    """Twice: the second view comes without its nodes. Of every policy, `tests/drivers/test_views.py` tells it without a
    process.
    """

    async def compare() -> None:
        view = waiting()
        worker = WorkerDecider(Choice(label="poise", name="poise"), Times())
        await worker.ready()
        inline = await plan_of(InlineDecider(policy_named("poise")), view)
        assert inline.decisions and not inline.failed
        assert await plan_of(worker, view) == inline
        assert await plan_of(worker, view) == inline
        worker.close()

    run(compare)


def test_a_worker_decides_with_two_policies_as_they_do_inline() -> None:
    """Where one of them needs code of others, both decide in one worker."""

    async def compare() -> None:
        world = World().nodes(3, cpu=4, gpus=1).job("a", cpu=4).job("b", cpu=3, gpu=1).job("c", cpu=4)
        view = world.ledger.snapshot(world.now)
        choice = choose_split(choose("srtf"), choose("poise"), Selection(names=("n1",)))
        worker = WorkerDecider(choice, Times())
        await worker.ready()
        inline = await plan_of(InlineDecider(build(choice)), view)
        assert {of.why.policy for of in inline.decisions if isinstance(of, Place)} == {"srtf", "poise"}
        assert await plan_of(worker, view) == inline
        worker.close()

    run(compare)


def test_views_are_decided_on_in_order() -> None:
    async def ask() -> None:
        worker = WorkerDecider(Choice(label="poise", name="poise"), Times())
        view = waiting()
        answers: list[Plan] = []
        await worker.ready()
        for _ in range(3):
            worker.decide(view, answers.append)
        await plan_of(worker, view)
        assert len(answers) == 3
        worker.close()

    run(ask)


def test_a_policy_gets_another_chance_after_its_rest(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mood = packages / "mood"
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.setenv("MOOD", str(mood))
    monkeypatch.syspath_prepend(packages)
    choice = choose("moody")
    mood.touch()

    async def ask() -> None:
        decider = WorkerDecider(choice, Times(policy_rest=SECOND))
        view = waiting()
        for _ in range(IN_A_ROW):
            await decider.ready()
            plan = await plan_of(decider, view)
            assert plan.failed.startswith(f"{FAILED}: LookupError: not now")
            assert (plan.policy, plan.memory) == ("fifo", None)
        resting = await plan_of(decider, view)
        assert (resting.policy, resting.failed) == ("fifo", "")
        mood.unlink()
        await asyncio.sleep(1)
        await plan_of(decider, view)  # it is time again
        await decider.ready()
        assert (await plan_of(decider, view)).policy == "sjf"
        decider.close()

    run(ask)


def test_a_policy_that_is_not_there_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        decider = WorkerDecider(Choice(label="gone@1", name="gone", foreign=True), Times())
        await decider.ready()
        first, second = await plan_of(decider, waiting()), await plan_of(decider, waiting())
        assert "the policy `gone` is not installed any more" in first.failed
        assert (first.policy, second.policy, second.failed) == ("fifo", "fifo", "")
        decider.close()

    run(ask)


def test_a_worker_that_does_not_come_up_in_time_is_a_failure() -> None:
    async def ask() -> None:
        decider = WorkerDecider(Choice(label="poise", name="poise"), Times(policy_start=MILLISECOND))
        await decider.ready()
        assert "not loaded within 1 ms" in (await plan_of(decider, waiting())).failed
        decider.close()

    run(ask)


def test_the_safe_policy_is_told_nothing_of_what_another_remembers() -> None:
    class Wrong:
        name = "wrong"

        def decide(self, view: Snapshot, /) -> Plan:
            raise LookupError("inline")

    async def ask() -> None:
        view = waiting()
        odd = {"credit": 5, "last": ["x"], "moved": "yes"}
        plan = await plan_of(InlineDecider(Wrong()), msgspec.structs.replace(view, memory=odd))
        assert plan.failed == f"{FAILED}: LookupError: inline"
        assert plan.memory is None and plan.decisions

    run(ask)
