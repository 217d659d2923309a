"""Nodes that are the machines of a Ray cluster: two real raylets here, killed, lent and taken again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from needed import needs

from poise.agent.pilots import COMPARE_SECONDS
from poise.drivers.lock import holder
from poise.model.times import Times
from poise.units import SECOND
from system.living import PATIENCE, Diary, Living, free_port, kill, until
from system.onray import NODES, OnRay, on_two_machines
from system.test_functions import run as run_program

needs("ray", "ray")

OTHERS = """
import ray, sys, time
ray.init(address=sys.argv[1], namespace="others", log_to_driver=False)
@ray.remote(num_cpus=2)
def work(file):
    open(file, "w").write("begun")
    while open(file).read() != "end":
        time.sleep(0.1)
ray.get(work.remote(sys.argv[2]))
"""


KILL = """
import ray, sys
ray.init(address=sys.argv[1], namespace="poise", log_to_driver=False)
for name in ray.util.list_named_actors():
    ray.kill(ray.get_actor(name), no_restart=True)
"""


@pytest.mark.parametrize(
    ("ray", "poise"),
    [
        ("gpu-1.lab", "gpu-1.lab"),
        ("10.0.0.1", "10.0.0.1"),
        ("fd00::7", "fd00::7"),
        ("the big one", "the-big-one"),
        ("rack 1/node 2", "rack-1-node-2"),
        ("../../etc", "etc"),
        ("--name", "name"),
        ("机器", "ab12"),
        ("", "ab12"),
        ("x" * 300, "x" * 63),
    ],
)
def test_machines_have_names_that_paths_and_commands_take(ray: str, poise: str) -> None:
    from poise_ray.cluster import called

    assert called({"NodeName": ray, "NodeID": "ab12"}) == poise


@pytest.fixture(scope="module")
def on_ray() -> Iterator[OnRay]:
    with on_two_machines() as on_ray:
        yield on_ray


def test_jobs_run_on_the_machines_of_the_cluster(on_ray: OnRay) -> None:
    living = on_ray.living
    assert [on_ray.node(name).cpu for name in NODES] == [2000, 2000]
    assert set(on_ray.free().values()) == {0.0}, "what is offered is held"
    jobs = [
        on_ray.submit(f"echo begun {name}; sleep 1; echo ended >&2; exit {code}") for name, code in (("x", 0), ("y", 3))
    ]
    assert [living.poise("wait", job).code for job in jobs] == [0, 3]
    assert sorted(node for job in jobs for node in on_ray.where(job)) == [*NODES]
    assert [living.poise("logs", job).text for job in jobs] == ["begun x\n", "begun y\n"]
    assert living.poise("drain", "a").code == 0
    job = on_ray.submit("exec sleep 1000")
    until(lambda: living.client().job(job).status == "running", "it runs", on_ray.messages)
    assert on_ray.where(job) == ["b"]
    assert living.poise("cancel", job).code == 0
    assert living.poise("wait", job).code != 0
    assert living.poise("drain", "a", "--undo").code == 0


def test_a_gang_meets_on_two_machines(on_ray: OnRay) -> None:
    """In the folder of each there is in the end what all have left."""
    meet = "echo $POISE_RANK > here.$POISE_RANK; until [ -e here.$((1-POISE_RANK)) ]; do sleep 0.1; done"
    job = on_ray.submit(f"cd $POISE_GANG_DIR; {meet}; cat here.*; pwd >&2", workers=2)
    done = on_ray.living.poise("wait", job)
    assert done.code == 0, on_ray.messages()
    assert sorted(on_ray.where(job)) == [*NODES]
    logs = on_ray.living.poise("logs", "--no-prefix", job)
    assert logs.text.split() == ["0", "1"] * 2
    assert len({*logs.err.split()}) == 2, "folders of their own"


def test_functions_are_called_on_the_machines_of_the_cluster(on_ray: OnRay) -> None:
    """Their larger values are files, on a disk that all of these machines share."""
    found = run_program(on_ray.living, "values")
    assert (found["square"], found["files"], found["array"]) == (49, 300_000, [30, 50])


@pytest.mark.slow
def test_training_grows_onto_another_machine_and_back(on_ray: OnRay) -> None:
    pytest.importorskip("torch")
    from train.gangs import HERE

    living, out = on_ray.living, on_ray.living.work / "out"
    options = {"samples": 500, "batch": 64, "epochs": 40, "pause": 0.1, "lasting": 40}
    env = {"OUT": str(out), "OMP_NUM_THREADS": "1", "OPTIONS": json.dumps(options)}
    env |= {"POISE_CHECKPOINTS": str(living.work / "checkpoints")}
    spec = {"run": [sys.executable, str(HERE / "digits.py")], "workers": "1..2", "resources": {"cpu": 2}}
    job = living.client().submit({**spec, "priority": "low", "expect": "1h", "env": env})

    def world() -> int:
        told = living.client().job(job).training
        return told[0].said.world if told and told[0].said.step else 0

    until(lambda: world() == 2, "both train", on_ray.messages)
    assert sorted(on_ray.where(job)) == [*NODES]
    other = on_ray.submit("sleep 3", priority="urgent")
    until(lambda: world() == 1, "one has made room", on_ray.messages)
    until(lambda: world() == 2, "and is back", on_ray.messages)
    assert living.poise("wait", other).code == 0
    out.with_name("hurry").touch()
    assert living.poise("wait", job).code == 0, living.poise("logs", job).text
    found = json.loads(out.with_name("out.0.json").read_text())
    assert (found["steps"], found["samples"], found["world"]) == (320, 20000, 2)


@pytest.mark.parametrize("killed", ["actor", "keeper of agents", "control plane"])
def test_what_runs_goes_on_when_something_is_killed(on_ray: OnRay, killed: str) -> None:
    living = on_ray.living
    diary = Diary(living.work / f"diary-{killed[:4]}")
    job = on_ray.submit(f"echo before; {diary.held()}; echo after")
    until(lambda: living.poise("logs", job).text == "before\n", "it runs", on_ray.messages)
    (node,) = on_ray.where(job)
    agent = on_ray.agent(node)
    if killed == "actor":
        kill(int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1]))
        until(lambda: on_ray.agent(node) not in (0, agent), "Ray has started it again", on_ray.messages)
    elif killed == "keeper of agents":
        before = holder(living.home.root / "ray" / "lock")
        kill(before)
        until(
            lambda: holder(living.home.root / "ray" / "lock") not in (0, before), "it is there again", on_ray.messages
        )
        assert on_ray.agent(node) == agent
    else:
        kill(living.pid("control"))
        until(lambda: living.poise("whoami").code == 0, "it is back")
    diary.release()
    assert living.poise("wait", job).code == 0
    assert living.poise("logs", job).text == "before\nafter\n"
    diary.check()


@pytest.mark.slow
def test_what_others_have_is_theirs_and_what_they_wait_for_is_lent(on_ray: OnRay) -> None:
    living, file = on_ray.living, on_ray.living.work / "others"
    until(lambda: all(on_ray.node(name).cpu == 2000 for name in NODES), "all is Poise's", on_ray.messages)
    busy = on_ray.submit("exec sleep 1000", preemptible=False)
    yields = on_ray.submit("[ $POISE_EPOCH = 1 ] && exec sleep 1000")
    for job in (busy, yields):
        until(lambda job=job: living.client().job(job).status == "running", "it runs", on_ray.messages)  # type: ignore[misc]
    (mine,) = on_ray.where(busy)
    (lent,) = {*NODES} - {mine}
    others = on_ray.asks(OTHERS, str(file))
    try:
        until(file.exists, "others have got what they asked for", on_ray.messages)
        until(lambda: on_ray.node(lent).cpu == 0, "and Poise offers it no more", on_ray.messages)
        assert on_ray.where(busy) == [mine]
        file.write_text("end")
        assert others.wait(PATIENCE) == 0
        done = living.client().wait(yields, PATIENCE)
        assert (done.tasks[0].epoch, on_ray.where(yields)) == (2, [lent]), "it has come back, and so has what ran there"
    finally:
        others.kill()
        others.communicate()
    assert living.poise("cancel", busy).code == 0


def test_a_machine_is_lost_and_comes_back(on_ray: OnRay) -> None:
    """Its work runs on another machine under the next epoch; what the lost one still runs is of no account."""
    living = on_ray.living
    until(lambda: all(on_ray.node(name).cpu == 2000 for name in NODES), "all is Poise's", on_ray.messages)
    assert living.poise("drain", "a").code == 0
    file = living.work / "epochs"
    job = on_ray.submit(f"echo $POISE_EPOCH >> {file}; [ $POISE_EPOCH = 2 ] || exec sleep 1000; echo second")
    until(lambda: file.exists() and living.client().job(job).status == "running", "it runs", on_ray.messages)
    assert on_ray.where(job) == ["b"]
    assert living.poise("drain", "a", "--undo").code == 0
    orphan = [pid for pid, arguments in living.processes(b"POISE_EPOCH=1").items() if "sleep 1000" in arguments]
    kill(on_ray.raylet("b"))
    until(lambda: on_ray.node("b").status == "lost", "it is lost", on_ray.messages)
    assert living.poise("wait", job).code == 0
    assert on_ray.where(job) == ["a"]
    assert file.read_text().split() == ["1", "2"]
    assert living.poise("logs", job).text == "second\n"
    assert len(orphan) == 1
    assert Path(f"/proc/{orphan[0]}").exists(), "nobody could tell it to stop"
    on_ray.raylets["b"].wait(PATIENCE)
    on_ray.start("b")
    until(lambda: on_ray.node("b").status == "up", "it is back", on_ray.messages)
    until(lambda: not Path(f"/proc/{orphan[0]}").exists(), "and what it should not run is ended", on_ray.messages)


def losses(on_ray: OnRay) -> list[dict[str, Any]]:
    """What the log has of nodes that were lost."""
    with on_ray.living.client() as client:
        events = [json.loads(line)["event"] for line in client.events(after=0, follow=False)]
    return [event for event in events if event["type"] == "lost"]


@pytest.mark.slow
def test_a_machine_that_leaves_is_lost_as_soon_as_ray_says_so(on_ray: OnRay) -> None:
    """Long before its silence would tell: its work is elsewhere by then."""
    living = on_ray.living
    until(lambda: [on_ray.node(name).status for name in NODES] == ["up", "up"], "both are there", on_ray.messages)
    assert living.poise("drain", "a").code == 0
    job = on_ray.submit("[ $POISE_EPOCH = 2 ] || exec sleep 1000", retry={"limit": 1, "when": ["lost"]})
    until(lambda: living.client().job(job).status == "running", "it runs", on_ray.messages)
    assert on_ray.where(job) == ["b"]
    assert living.poise("drain", "a", "--undo").code == 0
    left = time.monotonic()
    os.kill(on_ray.raylet("b"), signal.SIGTERM)
    until(lambda: on_ray.node("b").status == "lost", "it is lost", on_ray.messages)
    assert living.poise("wait", job).code == 0
    took = time.monotonic() - left
    assert on_ray.where(job) == ["a"]
    assert losses(on_ray)[-1].get("said"), f"by Ray, after {took:.1f} s"
    assert took < Times().dead_remote / SECOND
    on_ray.raylets["b"].terminate()
    on_ray.raylets["b"].wait(PATIENCE)
    on_ray.start("b")
    until(lambda: on_ray.node("b").status == "up", "it is back", on_ray.messages)


def test_a_machine_that_ray_drains_is_emptied_and_leaves_in_order(on_ray: OnRay) -> None:
    """What may move goes on elsewhere; one that comes in its place is open."""
    living = on_ray.living
    until(lambda: all(on_ray.node(name).cpu == 2000 for name in NODES), "all is Poise's", on_ray.messages)
    assert living.poise("drain", "a").code == 0
    job = on_ray.submit("[ $POISE_EPOCH = 2 ] || exec sleep 1000")
    until(lambda: living.client().job(job).status == "running", "it runs", on_ray.messages)
    assert on_ray.where(job) == ["b"]
    assert living.poise("drain", "a", "--undo").code == 0
    busy = on_ray.submit("exec sleep 1000")
    until(lambda: living.client().job(busy).status == "running", "it runs", on_ray.messages)
    on_ray.raylets["b"].terminate()
    until(lambda: on_ray.node("b").status == "emptying", "it is emptied", on_ray.messages)
    assert living.poise("cancel", busy).code == 0
    assert living.poise("wait", job).code == 0, "it has gone on elsewhere"
    assert on_ray.where(job) == ["a"]
    on_ray.raylets["b"].wait(PATIENCE)
    assert "ungracefully" not in (on_ray.folder / "b.log").read_text()
    until(lambda: on_ray.node("b").status == "lost", "it is lost", on_ray.messages)
    on_ray.start("b")
    until(lambda: on_ray.node("b").status == "up", "it is back", on_ray.messages)
    assert living.poise("run", "--cpu", "2", "--", "true").code == 0


def test_a_node_that_is_given_up_while_ray_has_it_gets_another_agent(on_ray: OnRay) -> None:
    """Its agent hangs, and so nobody ends and starts it again. What it ran goes on, as nobody else could run it."""
    living, file = on_ray.living, on_ray.living.work / "release"
    until(lambda: [on_ray.node(name).status for name in NODES] == ["up", "up"], "both are there", on_ray.messages)
    assert living.poise("drain", "a").code == 0
    job = on_ray.submit(f"while [ ! -e {file} ]; do sleep 0.1; done; echo epoch $POISE_EPOCH")
    until(lambda: living.client().job(job).status == "running", "it runs", on_ray.messages)
    hangs = on_ray.agent("b")
    os.kill(hangs, signal.SIGSTOP)
    until(lambda: on_ray.node("b").status == "lost", "it is lost", on_ray.messages)
    until(lambda: on_ray.node("b").status == "up", "it is heard again", on_ray.messages)
    assert on_ray.agent("b") not in (0, hangs)
    assert not losses(on_ray)[-1].get("said"), "by its silence"
    file.touch()
    assert living.poise("wait", job).code == 0
    assert living.poise("logs", job).text == "epoch 1\n"
    assert living.poise("drain", "a", "--undo").code == 0


@pytest.mark.slow
def test_agents_end_with_who_keeps_them_though_the_control_plane_has_ended_before(living: Living) -> None:
    """As it does in `poise down`; what is asked of it then is not answered. Its agent is killed with its actor just
    before, as when Ray is restarted: nobody but Ray's machine knows of the keepers that are left there.
    """
    done = living.poise("up", "--port", "0", "--on", "ray", "--listen", f"127.0.0.1:{free_port()}")
    assert done.code == 0, done.err
    until(lambda: [node.status for node in living.client().nodes()] == ["up"], "it has joined", living.messages)
    started = json.loads((living.home.root / "ray" / "started.json").read_text())
    assert living.poise("run", "--", "true").code == 0
    [lock] = living.home.root.glob("on-ray/*/*/node/lock")
    agent = holder(lock)
    keeper = holder(living.home.root / "ray" / "lock")
    kill(living.pid("supervisor"))
    kill(living.pid("control"))
    time.sleep(COMPARE_SECONDS + 2)
    assert holder(living.home.root / "ray" / "lock") == keeper, living.messages()[-2000:]
    os.kill(keeper, signal.SIGSTOP)
    os.kill(agent, signal.SIGSTOP)
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(living.home.root / "ray" / "auth")}
    address = (Path(started["folder"]) / "ray_current_cluster").read_text()
    subprocess.run([sys.executable, "-c", KILL, address], check=True, env=living.environment(**secret))
    kill(agent)
    os.kill(keeper, signal.SIGTERM)
    os.kill(keeper, signal.SIGCONT)
    until(lambda: not Path(f"/proc/{started['pid']}").exists(), "Ray has ended", living.messages, 30)
    until(lambda: not living.processes(), "and all that ran on it", living.processes, 20)


def test_an_agent_that_cannot_be_started_is_started_when_it_can(on_ray: OnRay) -> None:
    until(lambda: on_ray.node("b").status == "up", "it is there", on_ray.messages)
    [log] = on_ray.living.home.root.glob("on-ray/*/b/poise.log")
    agent, kept = on_ray.agent("b"), log.with_name("kept")
    log.rename(kept)
    log.mkdir()
    kill(agent)
    until(lambda: on_ray.agent("b") == 0, "it has ended", on_ray.messages)
    time.sleep(1)
    log.rmdir()
    kept.rename(log)
    until(lambda: on_ray.agent("b") not in (0, agent), "there is another", on_ray.messages)
    until(lambda: on_ray.node("b").status == "up", "it is heard", on_ray.messages)


def test_a_cluster_that_is_still_starting_ends_with_who_started_it(living: Living) -> None:
    up = living.start("up", "--port", "0", "--on", "ray", "--listen", f"127.0.0.1:{free_port()}")
    started = living.home.root / "ray" / "started.json"
    until(started.exists, "Ray is being started", living.messages)
    head = json.loads(started.read_text())
    kill(living.pid("supervisor"))
    os.kill(holder(living.home.root / "ray" / "lock"), signal.SIGTERM)
    until(lambda: not Path(f"/proc/{head['pid']}").exists(), "it has ended", living.messages, 30)
    until(lambda: not Path(head["folder"]).exists(), "and left nothing", living.messages)
    up.kill()
    up.communicate()


@pytest.mark.parametrize("there", [pytest.param(False, marks=pytest.mark.slow), True])
def test_who_brings_it_up_is_told_that_there_is_no_ray(living: Living, on_ray: OnRay, there: bool) -> None:
    """Nothing answers, or it is `there` and its secret is another: both are told where they are typed."""
    (living.work / "token").write_text("0" * 64)
    (living.work / "token").chmod(0o600)
    other = {**on_ray.token, "RAY_AUTH_TOKEN_PATH": str(living.work / "token")}
    address, environment, what, hint = (
        (on_ray.address, other, "Ray does not let this machine in without its secret", "auth_token")
        if there
        else (f"127.0.0.1:{free_port()}", {}, "no Ray answers there", "ray start")
    )
    listen = f"127.0.0.1:{free_port()}"
    done = living.poise("up", "--port", "0", "--on", f"ray:{address}", "--listen", listen, "--json", **environment)
    assert (done.code, done.error["code"], done.error["message"]) == (2, "E214", what), living.messages()[-2000:]
    assert address in done.error["have"]
    assert hint in done.error["hint"]
    doctor = living.poise("doctor", "--json")
    [check] = [check for check in doctor.value["checks"] if check["name"] == "Ray"]
    assert (doctor.code, check["status"]) == (1, "fail")
    assert what in check["text"]
    assert living.poise("down").code == 0
    [check] = [check for check in on_ray.living.poise("doctor", "--json").value["checks"] if check["name"] == "Ray"]
    assert check["status"] == "ok"


@pytest.mark.slow
def test_a_cluster_of_this_machine_alone(living: Living) -> None:
    done = living.poise("up", "--port", "0", "--on", "ray", "--listen", f"127.0.0.1:{free_port()}")
    assert done.code == 0, done.err
    until(lambda: [node.status for node in living.client().nodes()] == ["up"], "it has joined", living.messages)
    assert living.poise("run", "--", "echo", "hello").text == "hello\n"
    started = json.loads((living.home.root / "ray" / "started.json").read_text())
    assert living.poise("up", "--fleet", "none.yaml").code == 1
    assert living.poise("down").code == 0
    until(lambda: not Path(f"/proc/{started['pid']}").exists(), "Ray has ended", living.messages, 20)
    assert not Path(started["folder"]).exists(), "nothing is left behind"
