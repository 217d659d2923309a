"""Training tells the control plane what it sees: through the file that POISE_REPORT names, from any command."""

from functools import partial
from pathlib import Path
from typing import Any

from system.living import Living, kill, until

TRAIN = """
import json, os, sys, time
def tell(**fields):
    path = os.environ["POISE_REPORT"]
    with open(path + ".new", "w") as file:
        json.dump(fields, file)
    os.replace(path + ".new", path)
"""

SAYS = {
    "step": 1200,
    "samples": 76800,
    "progress": 420_000,
    "safe": 400_000,
    "batch": 32,
    "accumulation": 2,
    "effective": 64,
    "precision": "bf16",
    "phase": "convergence",
    "step_time": 48_000_000,
    "goodput": 1_234_000,
    "throughput": 1_301_000,
    "sent": 2**20,
    "plain": 2**22,
    "energy": 4_500_000_000,
    "energy_source": "rapl",
    "memory": 3 * 2**30,
    "budget": 4 * 2**30,
    "checkpoint": {"step": 1150, "at": 1.0, "stall": 3_000_000, "bytes": 45 * 2**20, "kept": 3, "every": 60 * 10**9},
    "restored": "step 800; 900 was torn",
    "advice": "top-k would halve what is sent",
}


def train(living: Living, script: str, *options: str, name: str = "train") -> None:
    living.file(f"{name}.py", TRAIN + script)
    done = living.poise("submit", "--name", name, *options, "--", "python3", str(living.work / f"{name}.py"))
    assert done.code == 0, done.err


def said(living: Living, name: str = "train") -> dict[str, Any] | None:
    [*told] = living.poise("show", name, "--json").value["training"]
    return told[0]["said"] if told else None


def test_show_tells_what_training_says(shared: Living) -> None:
    train(shared, f"tell(**{SAYS!r}); time.sleep(60)")
    until(lambda: said(shared), "it is known")
    assert said(shared) == SAYS
    text = shared.poise("show", "train").text
    for part in (
        "training: convergence phase, step 1,200, 42 % done, 40 % safe",
        "throughput 1,301 samples/s of late, goodput 1,234 samples/s since it first began, 48 ms a step",
        "batch 32 x 2 accumulated x 1 worker = 64 samples a step, bf16",
        "1 MiB sent a step, 75 % less than the 4 MiB of plain",
        "energy 1.25 kWh (rapl)",
        "memory of a worker 3 GiB at most of the 4 GiB it may use",
        "checkpoint of step 1,150",
        "50 steps since, 45 MiB, stall 3 ms, 3 kept, one each 1m0s",
        "restored: step 800; 900 was torn",
        "advice: top-k would halve what is sent",
    ):
        assert part in text
    shared.poise("cancel", "train")


def test_what_cannot_be_used_changes_nothing_and_is_said_once(shared: Living) -> None:
    train(
        shared,
        "tell(step=-1); time.sleep(2.5); tell(step='x'); time.sleep(2.5); tell(step=7); time.sleep(60)",
        name="bad",
    )
    until(lambda: said(shared, "bad"), "what can be used is known")
    assert said(shared, "bad") == {"step": 7}
    assert shared.messages().count("tells of its training cannot be used") == 1
    shared.poise("cancel", "bad")


def test_it_outlives_the_agent_and_the_control_plane(shared: Living) -> None:
    train(shared, "tell(step=5, phase='initial'); time.sleep(120)", name="lives")
    until(lambda: said(shared, "lives"), "it is known")
    for what in ("agent", "control"):
        was = shared.pid(what)
        kill(was)
        until(partial(other, shared, what, was), f"there is another {what}")
        until(lambda: said(shared, "lives"), "it is known again")
        assert said(shared, "lives") == {"step": 5, "phase": "initial"}
    shared.poise("cancel", "lives")


def test_what_is_safe_need_not_be_done_again(shared: Living) -> None:
    """Killed at once after its last word: what counts is what was in a checkpoint by then."""
    script = """
if os.environ["POISE_EPOCH"] == "1":
    tell(step=30, progress=300_000, safe=100_000)
    time.sleep(1.5)
    tell(step=50, progress=500_000, safe=450_000)
    os.kill(os.getpid(), 9)
time.sleep(60)
"""
    train(shared, script, name="again")
    until(lambda: shared.poise("show", "again", "--json").value["tasks"][0]["epoch"] == 2, "it is tried again")
    job = shared.poise("show", "again", "--json").value["id"]
    known = [event["event"] for event in events(shared)]
    [ending] = [one["ending"] for one in known if one["type"] == "finished" and one["task"].startswith(f"{job}.")]
    assert ending["progress"] == 450_000
    told = [one["training"]["step"] for one in known if one["type"] == "training" and one["unit"].startswith(f"{job}.")]
    assert told[-1] == 50
    shared.poise("cancel", "again")


def test_nothing_is_left_of_it(shared: Living) -> None:
    train(shared, "tell(step=1); time.sleep(2)", name="brief")
    assert shared.poise("wait", "brief").code == 0
    folder: Path = shared.home.node / "keepers" / "results"
    until(
        lambda: not [*folder.glob("*brief*")] and not [*folder.glob("*.report*")],
        "its report is gone",
        lambda: [*folder.iterdir()],
    )
    assert said(shared, "brief") == {"step": 1}


def test_what_is_tried_again_is_told_what_it_may_use_in_its_phase(shared: Living) -> None:
    script = """
if os.environ["POISE_EPOCH"] == "1":
    tell(step=30, phase="fine-tuning")
    time.sleep(2.5)
    os.kill(os.getpid(), 9)
names = ("POISE_PHASE", "POISE_THREADS", "OMP_NUM_THREADS", "POISE_DEVICE_MEMORY")
with open(os.environ["POISE_RESULT"], "w") as file:
    json.dump({name: os.environ[name] for name in names}, file)
"""
    shared.file("phases.py", TRAIN + script)
    job = {
        "name": "phases",
        "run": ["python3", str(shared.work / "phases.py")],
        "resources": {"cpu": 2},
        "phases": {"fine-tuning": {"cpu": 1, "device_memory": "30%"}},
    }
    shared.client().submit(job)
    assert shared.poise("wait", "phases").code == 0
    assert shared.poise("show", "phases", "--json").value["tasks"][0]["result"] == {
        "POISE_PHASE": "fine-tuning",
        "POISE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "POISE_DEVICE_MEMORY": "0.3",
    }


def other(living: Living, what: str, was: int) -> bool:
    return living.pid(what) not in (0, was)


def events(living: Living) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = living.poise("events", "--json").value
    return found
