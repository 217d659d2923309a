"""A fleet of declared nodes on one machine: started, used, killed and stopped like real ones."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed

from poise.drivers.lock import holder
from poise.drivers.security import ensure_token
from poise.drivers.yamlfile import parse_yaml
from poise.kernel.frames import Frames
from poise.model.fleetfile import compile_fleet
from poise.model.load import NOTICEABLE
from poise.model.messages import Attempt, Beat, Desired, FromAgent, Heard, Hello, Launch, ToAgent
from poise.model.resources import Shape
from system.living import Diary, Living, kill, until

FLEET = """
kind: fleet
name: lab
nodes:
  hopper: {count: 2, cpu: 32, memory: 256GiB, network: 400Gbit, zone: z1, rack: r1, devices: [{model: H100, count: 4}]}
  edge:
    cpu: 1
    memory: 2GiB
    zone: z2
    labels: {site: edge}
    devices: [{type: GPU, compute_power: 20 TFLOPS, memory: 16 GB, supported_ops: [matmul]}]
throughputs:
  resnet: {H100: 40.0, cpu: 0.5}
"""
NODES = ["edge", "hopper-0", "hopper-1"]


def agents(living: Living) -> list[int]:
    return [holder(living.home.nodes / name / "lock") for name in NODES]


def nodes(living: Living) -> dict[str, Any]:
    return {node["name"]: node for node in living.poise("nodes", "--json").value}


def start(living: Living, *options: str | Path) -> None:
    living.file("fleet.yaml", FLEET)
    done = living.poise("up", "--port", "0", "--fleet", "fleet.yaml", *options)
    assert done.code == 0, done.err
    assert "fleet lab of 3 declared nodes" in done.err
    until(lambda: _all_up(living), "all nodes have joined", living.messages)


def _all_up(living: Living) -> bool:
    return sorted(node.name for node in living.client().nodes() if node.status == "up") == NODES


@pytest.fixture(scope="module")
def lab() -> Iterator[Living]:
    living = Living()
    try:
        start(living)
        yield living
    except BaseException:
        living.destroy()
        raise
    living.close()
    assert not living.processes()


def test_declared_nodes_join_with_what_was_declared(lab: Living) -> None:
    found = nodes(lab)
    hopper, edge = found["hopper-1"], found["edge"]
    assert (hopper["cpu"], hopper["memory"]) == (32_000, 256 * 2**30)
    assert [device["model"] for device in hopper["devices"]] == ["H100"] * 4
    assert hopper["labels"] == {"declared": "true"}
    assert edge["labels"] == {"declared": "true", "site": "edge"}


def test_commands_run_on_cores_that_this_machine_does_not_have(lab: Living) -> None:
    done = lab.poise("run", "--cpu", "30", "--", "sh", "-c", "echo $POISE_TASK here")
    assert done.code == 0, done.err
    (task,) = lab.poise("show", "--json", lab.poise("ls", "--json", "--all").value[0]["id"]).value["tasks"]
    assert task["node"].startswith("hopper-")
    assert task["cpus"] == [], "declared cores are not bound"


def test_a_command_sees_the_devices_that_it_was_given(lab: Living) -> None:
    done = lab.poise("run", "--gpu", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert done.code == 0, done.err
    seen = [int(index) for index in done.text.strip().split(",")]
    assert len(set(seen)) == 2
    assert set(seen) <= set(range(4))
    done = lab.poise("run", "--", "sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"')
    assert done.text == "[]\n"


def test_devices_are_used_up_over_all_nodes(lab: Living) -> None:
    """Both nodes with more than one device are full: a job of two devices waits, is told why, and comes through."""
    jobs = [
        lab.poise("submit", "--json", "--gpu", "4", "--name", f"hold-{place}", "--", "sleep", "60").value["job"]
        for place in range(2)
    ]
    until(lambda: len({_node_of(lab, job) for job in jobs}) == 2, "each has a node of its own", lab.messages)
    assert {_node_of(lab, job) for job in jobs} == {"hopper-0", "hopper-1"}
    held = {node["name"]: [device["held_by"] for device in node["devices"]] for node in nodes(lab).values()}
    assert all(held["hopper-0"]) and all(held["hopper-1"])
    late = lab.poise("submit", "--json", "--gpu", "2", "--name", "late", "--", "true").value["job"]
    until(lambda: lab.client().job(late).tasks[0].reasons, "it is told why it waits", lab.messages)
    lab.poise("cancel", jobs[0])
    assert lab.poise("wait", late).code == 0
    lab.poise("cancel", jobs[1])
    lab.poise("wait", *jobs)


def _node_of(lab: Living, job: str) -> str:
    return lab.client().job(job).tasks[0].node


def test_a_killed_agent_comes_back_and_adopts_what_runs(lab: Living) -> None:
    job = lab.poise("submit", "--json", "--gpu", "1", "--gpu-memory", "40GB", "--", "sleep", "3").value["job"]
    until(lambda: lab.client().job(job).tasks[0].status == "running", "it runs", lab.messages)
    name = _node_of(lab, job)
    before = holder(lab.home.nodes / name / "lock")
    kill(before)
    until(lambda: holder(lab.home.nodes / name / "lock") not in (0, before), "the agent is started again", lab.messages)
    assert lab.poise("wait", job).code == 0
    assert lab.client().job(job).tasks[0].epoch == 1, "it went on, and was not started again"


def test_the_fleet_is_kept_when_the_control_plane_is_killed(lab: Living) -> None:
    before = agents(lab)
    kill(lab.pid("control"))
    until(lambda: lab.pid("control") and _all_up(lab), "all nodes are back", lab.messages)
    assert agents(lab) == before, "the agents went on"


def test_up_again_says_the_same_and_changes_nothing(lab: Living) -> None:
    before = agents(lab)
    done = lab.poise("up", "--fleet", "fleet.yaml")
    assert done.code == 0, done.err
    assert "up already" in done.err
    lab.file("other.yaml", FLEET.replace("cpu: 32", "cpu: 16"))
    refused = lab.poise("up", "--fleet", "other.yaml", "--json")
    assert refused.code == 1
    assert refused.error["hint"].startswith("`poise down --leave`, then `poise up --fleet other.yaml`")
    assert lab.poise("up", "--no-fleet", "--json").code == 1
    assert agents(lab) == before


def test_the_table_tells_load_place_and_devices(lab: Living) -> None:
    out = lab.poise("nodes").text
    header, *rows = out.splitlines()
    assert " ".join(header.split()) == "NODE STATUS LOAD CPU MEMORY NETWORK PLACE RUNNING QUEUED DEVICES"
    assert len(rows) == 3
    assert any("0-3: H100" in row for row in rows)


def test_down_ends_every_agent_and_the_fleet_stays_until_told_otherwise() -> None:
    living = Living()
    try:
        start(living)
        assert all(agents(living))
        assert living.poise("down").code == 0
        until(lambda: not living.processes(), "all is over", living.processes)
        assert not any(agents(living))
        done = living.poise("up", "--port", "0")
        assert "fleet lab of 3 declared nodes" in done.err
        until(lambda: _all_up(living), "all nodes have joined again", living.messages)
        os.kill(living.pid("supervisor"), signal.SIGTERM)
        until(lambda: not any(agents(living)) and not living.pid("control"), "its children end too", living.messages)
        until(lambda: not living.pid("supervisor"), "it has ended", living.messages)
        done = living.poise("up", "--port", "0", "--no-fleet")
        assert (done.code, "fleet" in done.err) == (0, False), done.err
        until(lambda: living.pid("agent"), "this machine's own agent is there", living.messages)
    finally:
        living.close()


@pytest.mark.parametrize(
    "options",
    [pytest.param(("--no-fleet",), marks=pytest.mark.slow), ("--fleet", "other.yaml")],
    ids=("none", "another"),
)
def test_nodes_of_an_earlier_fleet_are_forgotten_and_what_ran_there_runs_elsewhere(
    living: Living, options: tuple[str, ...]
) -> None:
    start(living)
    diary = Diary(living.work / "diary")
    living.file("long.yaml", f"run: '{diary.held()}'\n")
    job = living.poise("submit", "long.yaml").text.strip()
    until(lambda: list(diary.entries()), "it runs", living.messages)
    before = living.tasks()
    assert living.poise("down", "--leave").code == 0
    assert set(before) <= set(living.tasks())
    living.file("other.yaml", "kind: fleet\nname: other\nnodes: {left: {cpu: 2, memory: 2GiB}}\n")
    done = living.poise("up", "--port", "0", *options)
    assert done.code == 0, done.err
    names = ["left"] if len(options) > 1 else [os.uname().nodename]
    until(lambda: [node.name for node in living.client().nodes()] == names, "the others are forgotten", living.messages)
    assert living.client().status().fleet == ("other" if len(options) > 1 else "")
    until(lambda: not set(before) & set(living.tasks()), "the first attempt is ended", living.messages)
    diary.release()
    assert living.poise("wait", job).code == 0
    [task] = living.client().job(job).tasks
    assert (task.epoch, task.node, [attempt.outcome for attempt in task.attempts]) == (2, names[0], ["lost"])
    assert diary.endings() == [f"{job}.main"], "the first attempt was ended"
    until(lambda: not any((living.home.nodes / name).exists() for name in NODES), "its nodes are gone", living.messages)
    assert not set(before) & set(living.processes())


def test_this_machine_is_forgotten_when_a_fleet_takes_its_place(living: Living) -> None:
    living.up()
    until(lambda: living.client().nodes(), "it has joined", living.messages)
    assert living.poise("submit", "--name", "long", "--", "sleep", "600").code == 0
    before = until(living.tasks, "it runs", living.messages)
    assert living.poise("down", "--leave").code == 0
    start(living)
    until(lambda: not set(before) & set(living.processes()), "it is ended there", living.messages)
    until(lambda: living.client().job("long").status == "running", "it runs elsewhere", living.messages)
    assert living.client().job("long").tasks[0].node in NODES


def test_a_fleet_that_cannot_be_is_refused_before_anything_starts(living: Living) -> None:
    living.file("fleet.yaml", FLEET.replace("cpu: 32", "cpus: 32"))
    done = living.poise("up", "--fleet", "fleet.yaml", "--json")
    assert (done.code, done.error["field"]) == (1, "nodes.hopper.cpus")
    assert done.error["hint"] == "did you mean `cpu`?"
    living.file("large.yaml", FLEET.replace("count: 2", "count: 100"))
    done = living.poise("up", "--fleet", "large.yaml", "--json")
    assert (done.code, done.error["have"]) == (1, "101")
    assert living.poise("up", "--fleet", "nowhere.yaml", "--json").error["code"] == "E101"
    assert not living.processes()


def test_a_fleet_is_shown_without_starting_anything(living: Living) -> None:
    living.file("fleet.yaml", FLEET.replace("count: 2", "count: 200"))
    done = living.poise("nodes", "--fleet", "fleet.yaml", "--json")
    found = json.loads(done.out)
    assert len(found) == 201
    device = found[0]["devices"][0]
    assert (device["model"], device["rates"]["fp16"], device["bandwidth"]) == ("H100", 989_500 * 10**9, 3_350 * 10**9)
    assert device["per_watt"]["fp16"] == 989_500 * 10**9 // 700
    assert (found[0]["zone"], found[0]["rack"], found[0]["network"]) == ("z1", "r1", 400 * 10**9)
    text = living.poise("nodes", "--fleet", "fleet.yaml").text
    assert "0-3: H100" in text
    assert "z1/r1" in text
    assert not living.home.root.exists()


class End:
    """A control plane's end of the channel to an agent."""

    def __init__(self, channel: ServerConnection) -> None:
        self.frames = Frames()
        self._channel = channel

    async def say(self, message: ToAgent) -> None:
        await self._channel.send(msgspec.msgpack.encode((self.frames.number(), message)))


@asynccontextmanager
async def agent_of(living: Living, name: str) -> AsyncIterator[tuple[End, asyncio.Queue[FromAgent]]]:
    """The agent of one declared node, the channel to it and what it says; the test is its control plane."""
    ensure_token(living.home)
    living.home.fleet.write_bytes(msgspec.json.encode(compile_fleet(parse_yaml(FLEET, "fleet.yaml"))))
    heard: asyncio.Queue[FromAgent] = asyncio.Queue()
    opened: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    async def hear(channel: ServerConnection) -> None:
        end = End(channel)
        opened.set_result(end)
        with contextlib.suppress(ConnectionClosed):
            while True:
                serial, said = msgspec.msgpack.decode(await channel.recv(decode=False), type=tuple[int, FromAgent])
                assert end.frames.hears(serial)
                heard.put_nowait(said)
                if isinstance(said, Beat):
                    await end.say(Heard(beat=said.number))

    command = [sys.executable, "-m", "poise.agent", str(living.home.root), "--name", name]
    async with unix_serve(hear, str(living.home.socket), compression=None):
        agent = subprocess.Popen([*command, "--declared", str(living.home.fleet)], env=living.environment())  # noqa: ASYNC220
        try:
            yield await asyncio.wait_for(opened, 20), heard
        finally:
            agent.terminate()
            agent.wait(20)


def test_a_declared_node_tells_its_load_when_it_changes_and_is_silent_otherwise(living: Living) -> None:
    async def listen() -> None:
        async with agent_of(living, "edge") as (channel, heard):
            hello = await asyncio.wait_for(heard.get(), 20)
            assert isinstance(hello, Hello)
            assert (hello.node.name, hello.node.cpu) == ("edge", 1000)
            idle = (await beats(heard, until_cpu=0))[-1].load
            assert idle is not None
            assert idle.load1 == 0
            launch = Launch(attempt=Attempt("j1.burn", 1), argv=("/bin/sh", "-c", BURN), shape=Shape(), slots=1)
            await channel.say(Desired(launches=(launch,), complete=True))
            busy = (await beats(heard, until_cpu=300))[-1].load
            assert busy is not None
            assert busy.memory == 0, "a shell is nothing beside 2 GiB"
            await channel.say(Desired(complete=True))
            await beats(heard, until_cpu=0)
            quiet = [await asyncio.wait_for(heard.get(), 20) for _ in range(8)]
            assert any(isinstance(beat, Beat) and beat.load is None for beat in quiet), (
                "what does not change is not said again"
            )

    asyncio.run(listen())


BURN = "while :; do :; done"


async def beats(heard: "asyncio.Queue[FromAgent]", until_cpu: int) -> list[Beat]:
    """Up to the first that says so much CPU use, or next to none."""
    found: list[Beat] = []
    for _ in range(60):
        said = await asyncio.wait_for(heard.get(), 20)
        if isinstance(said, Beat):
            found.append(said)
            if said.load is not None and (said.load.cpu >= until_cpu if until_cpu else said.load.cpu < NOTICEABLE):
                return found
    raise AssertionError(f"not said: {until_cpu}; {found}")
