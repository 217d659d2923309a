"""How a gateway ends, and how it goes on where others do: replicas that crash, a control plane that is told to end."""

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from poise.control.start import lasting
from poise.errors import Unreachable
from system.living import Living, kill, until
from system.serving import Serving

APP = '''
import os, signal, sys, time

class Model:
    def predict(self, batch: list) -> list:
        time.sleep(max(batch))
        return batch

class Large:
    def predict(self, batch: list[int]) -> list[str]:
        return ["x" * one for one in batch]

class Crashes:
    """While it loads, unless there is a file that says how often it may start well."""
    def load(self):
        with open("starts", "a") as starts:
            starts.write("x")
        if not os.path.exists("well"):
            sys.stderr.write("about to crash")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGSEGV)

    def predict(self, batch: list) -> list:
        return batch
'''

FILES = {"app.py": APP}


def test_a_replica_that_crashes_as_it_loads_is_tried_three_times(home: Living) -> None:
    served = Serving(home, "app.py:Crashes", "--name", "crashes", "--cpu", "0.1", ready=False)
    assert served.process.wait(30) == 1
    served.until_said("a replica of crashes cannot start")
    assert "about to crash" in served.text and "SIGSEGV" in served.text
    assert (home.work / "starts").read_text() == "xxx"
    served.end()


def test_a_replica_that_crashes_ever_again_is_started_ever_more_seldom(home: Living) -> None:
    starts, well = home.work / "starts", home.work / "well"
    starts.unlink(missing_ok=True)
    well.touch()
    served = Serving(home, "app.py:Crashes", "--name", "again", "--cpu", "0.1")
    assert served.ask(1).value == 1
    well.unlink()
    (job,) = [job.id for job in home.client().jobs() if job.status == "running"]
    kill(home.client().job(job).tasks[0].pid)
    served.until_said("ended without having been ready; another is started in 1 s")
    well.touch()
    assert served.ask(2).value == 2, "and it is back once it can be"
    assert len(starts.read_text()) < 10
    assert served.end() == 0


def test_who_takes_an_answer_slowly_has_all_of_it_before_the_gateway_ends(home: Living) -> None:
    size = 20_000_000
    served = Serving(home, "app.py:Large", "--name", "large", "--cpu", "0.1")
    host, port = served.url.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\n%d" % size)
        came = client.recv(1 << 16)
        served.process.send_signal(signal.SIGTERM)
        served.until_said("draining")
        time.sleep(1.5)
        came_then = 0
        while part := client.recv(1 << 20):
            came_then += len(part)
            time.sleep(0.01)
    head, _, body = came.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(body) + came_then == size + 2
    assert served.end() == 0


def test_told_twice_to_end_it_refuses_what_it_has_not_answered(home: Living) -> None:
    served = Serving(home, "app.py:Model", "--name", "hurried", "--cpu", "0.1", "--batch", "1")
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(served.ask, 20) for _ in range(3)]
        until(lambda: served.metric("serve_replica_processing_queries") == 1, "it is at work", lambda: served.text)
        served.process.send_signal(signal.SIGINT)
        served.until_said("draining")
        time.sleep(0.3)
        assert served.process.poll() is None and not any(one.done() for one in asked)
        began = time.monotonic()
        served.process.send_signal(signal.SIGINT)
        told = [one.result() for one in asked]
    assert [one.status for one in told] == [503] * 3
    assert all("ending" in one.value["error"]["message"] and "retry-after" in one.headers for one in told)
    assert served.end() == 0
    assert time.monotonic() - began < 10


def test_sockets_of_gateways_that_were_killed_are_swept(home: Living) -> None:
    """Those that are old and at which nobody listens; not the fresh ones, nor those of others that serve."""
    home.home.services.mkdir(parents=True, exist_ok=True)
    old, fresh, live = (home.home.services / f"{name}.sock" for name in ("old", "fresh", "live"))
    listening = {}
    for path in (old, fresh, live):
        listening[path] = socket.socket(socket.AF_UNIX)
        listening[path].bind(str(path))
    listening[live].listen()
    for path in (old, live):
        os.utime(path, (time.time() - 100, time.time() - 100))
    listening[old].close()
    listening[fresh].close()
    served = Serving(home, "app.py:Model", "--name", "sweeps", "--cpu", "0.1", ready=False)
    until(lambda: not old.exists(), "the old one is gone", lambda: served.text)
    assert fresh.exists() and live.exists()
    served.end()
    listening[live].close()
    fresh.unlink()
    live.unlink()


def test_it_goes_on_for_as_long_as_the_control_plane_is_away_and_starts_none(home: Living) -> None:
    served = Serving(home, "app.py:Model", "--name", "alone", "--cpu", "0.1")
    assert home.poise("down", "--leave").code == 0
    began = time.monotonic()
    while time.monotonic() - began < 2.5:
        assert served.ask(0).status == 200
        time.sleep(0.05)
    assert not any(home.pid(what) for what in ("control", "agent", "supervisor"))
    assert served.text.count("goes on, but no replica can be started: no control plane runs here; `poise up`") == 1
    assert served.metric("serve_deployment_replica_healthy") == 1
    home.up()
    served.until_said("there is a control plane again")
    (job,) = until(
        lambda: len(found := [job.id for job in home.client().jobs() if job.status == "running"]) == 1 and found,
        "what was cancelled before has ended",
        lambda: home.client().jobs(),
    )
    kill(home.client().job(job).tasks[0].pid)
    assert served.ask(0).status == 200, "another took its place"
    assert home.poise("down", "--cancel").code == 0
    served.until_said("0 of 1 ready")
    time.sleep(2)
    assert not home.pid("control")
    assert served.end() == 0


def test_one_that_left_for_want_of_work_is_started_again_and_one_that_was_told_to_end_is_not() -> None:
    """As `poise serve` asks for it, whose services may have no replica for a while."""
    living = Living()
    try:
        connect = lasting(living.home, "--until-idle", "--port", "0")
        with connect() as client:
            client.submit({"run": ["true"]})
        until(lambda: not living.pid("supervisor"), "it has left", living.messages)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))  # as while a gateway starts
        with connect() as client:
            assert client.status()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert living.poise("down", "--cancel").code == 0
        with pytest.raises(Unreachable, match="no control plane runs here"):
            connect()
        living.close()
    finally:
        living.destroy()
