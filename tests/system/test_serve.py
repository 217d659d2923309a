"""`poise serve` over real sockets: what is asked is answered, whatever clients, replicas and models do."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from system.living import Living, alive, ended, kill, until
from system.serving import Serving

APP = '''
import os, sys, time
import msgspec

class Ask(msgspec.Struct, forbid_unknown_fields=True):
    value: float
    sleep: float = 0.0
    fail: bool = False
    die: bool = False

class Model:
    def predict(self, batch: list[Ask]) -> list[float]:
        if len(batch) > 8:
            raise MemoryError("eight at most")
        if any(one.die for one in batch):
            os._exit(1)
        if any(one.fail for one in batch):
            raise ValueError("a bad one")
        time.sleep(max(one.sleep for one in batch))
        return [2 * one.value for one in batch]

    def example(self):
        return Ask(1.0)

class Slow:
    """A batch of up to four takes 20 ms: 200 a second."""
    def predict(self, batch: list) -> list:
        time.sleep(0.02 * -(-len(batch) // 4))
        return batch

    def example(self):
        return 1

class Odd:
    """Whatever goes wrong in a user's code."""
    def decode(self, body):
        return {"exit": 1, "surrogate": 2}[body.decode()] if body[:1] != b"=" else body.decode()[1:]

    def predict(self, batch):
        if len(batch) > 2:
            raise AssertionError("two at most")
        if "exit" in batch:
            sys.exit(3)
        if "none" in batch:
            return None
        if "text" in batch:
            return "x" * len(batch)
        if "surrogate" in batch:
            raise OSError(os.fsdecode(b"no file \\xff"))
        return batch

    def example(self):
        return "1"

class Leaves:
    def load(self):
        sys.exit(0)

    def predict(self, batch):
        return batch

class Lasting:
    """Takes long to load, where there is no file `loaded`, and for ever to answer."""
    def load(self):
        with open("pids", "a") as pids:
            pids.write(f"{os.getpid()}\\n")
        while not os.path.exists("loaded"):
            time.sleep(0.05)

    def predict(self, batch):
        time.sleep(1000)

class Counted:
    """Never answers the same twice."""
    said = 0

    def predict(self, batch: list) -> list:
        time.sleep(0.1)
        self.said += 1
        return [self.said for _ in batch]

class Raw:
    """Gives back what it got, and dies of what begins with `die` the first time."""
    def decode(self, body: memoryview):
        return body

    def predict(self, batch):
        if any(one[:3] == b"die" for one in batch) and not os.path.exists("died"):
            open("died", "w").close()
            os._exit(1)
        return batch

    def encode(self, result):
        return result

class Precise:
    def predict(self, batch: list) -> list:
        return [os.environ.get("POISE_PRECISION") for _ in batch]

class Broken:
    def load(self):
        raise RuntimeError("no weights here")

    def predict(self, batch):
        return batch

class Dear:
    """20 MiB for each item, while it is worked on."""
    def predict(self, batch: list) -> list:
        taken = [b"x" * (20 << 20) for _ in batch]
        time.sleep(0.1)
        return [len(one) for one in taken]
'''

FILES = {"app.py": APP}


@pytest.fixture(scope="module")
def serving(home: Living) -> Iterator[Serving]:
    served = Serving(home, "app.py:Model", "--replicas", "2", "--cpu", "0.1")
    until(lambda: "2 of 2" in served.text, "both are ready", lambda: served.text)
    yield served
    assert served.end() == 0


@pytest.fixture(scope="module")
def half_open(serving: Serving) -> Iterator[list[socket.socket]]:
    """Clients that begin to ask and never get on, there while all other tests run."""
    host, port = serving.url.split(":")
    clients = []
    for number in range(100):
        client = socket.create_connection((host, int(port)))
        if number % 2:
            client.sendall(
                b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n" + b"\r\n{" * (number % 4 // 2)
            )
        clients.append(client)
    yield clients
    for client in clients:
        client.close()


def test_a_question_is_answered(serving: Serving, half_open: list[socket.socket]) -> None:
    told = serving.ask({"value": 21})
    assert (told.status, told.value, told.headers["content-type"]) == (200, 42.0, "application/json")
    assert serving.ask({"value": 1}, "/predict/app").value == 2.0


@pytest.mark.parametrize(
    ("status", "says", "asked"),
    [
        (400, "cannot be read", {"body": b'{"value": 1'}),
        (400, "cannot be read", {"body": b""}),
        (400, "cannot be read", {"body": b"\xff\xfe"}),
        (422, "Expected `object`, got `array`", {"body": b"[]"}),
        (400, "cannot be read", {"body": b"[" * 100_000}),
        (422, "Expected `float`, got `str` - at `$.value`", {"body": {"value": "x"}}),
        (422, "unknown field `values`", {"body": {"value": 1, "values": 2}}),
        (422, "missing required field `value`", {"body": {}}),
        (404, "there is no service `nope`; known: app", {"body": {}, "path": "/predict/nope"}),
        (404, "there is /predict/app", {"body": {}, "path": "/elsewhere"}),
        (405, "ask with POST", {"body": b"", "method": "GET"}),
        (400, "a number above 0", {"body": {"value": 1}, "x_request_timeout_seconds": "soon"}),
        (413, "16 MiB at most", {"body": b"", "content_length": str(1 << 30)}),
    ],
)
def test_what_is_wrong_is_told(serving: Serving, status: int, says: str, asked: dict[str, Any]) -> None:
    told = serving.ask(**asked)
    assert told.status == status
    assert says in told.value["error"]["message"]
    assert told.value["error"]["code"] == status


def test_its_latencies_are_shown_by_a_command(serving: Serving, home: Living) -> None:
    """Against no objective here; `poise services` needs neither a key nor the address of the gateway."""
    for number in range(20):
        serving.ask({"value": number, "sleep": 0.02})
    (told,) = home.poise("services", "--json").value
    assert (told["service"], told["url"], told["replicas"]) == ("app", f"http://{serving.url}", 2)
    assert told["answered"] >= 20 and told["rate"] > 0
    assert 20_000_000 <= told["p50"] <= told["p95"] <= told["p99"]
    head, row = home.poise("services", "app", "-o", "wide").text.splitlines()
    assert row.startswith("app ") and {"P50", "P95", "P99", "OBJECTIVE", "REFUSED", "BATCH"} <= set(head.split())
    assert home.poise("services", "-o", "name").text == "app\n"
    unknown = home.poise("services", "apq")
    assert unknown.code == 1 and "did you mean `app`?" in unknown.err
    meant = home.poise("show", "app")
    assert meant.code == 1 and "`app` is a service: `poise services app`" in meant.err


ASK = b'POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\n{"value": 21}'
LIVE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_what_comes_on_one_connection_is_answered_in_its_order(serving: Serving) -> None:
    slow = ASK.replace(b"13", b"24").replace(b"21}", b'1,"sleep":0.3}')
    told = serving.raw(slow + LIVE + ASK.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close"))
    assert re.findall(rb"HTTP/1.1 (\d+)", told) == [b"200"] * 3
    assert told.index(b"2.0") < told.index(b'"status":"ok"') < told.index(b"42.0")


@pytest.mark.parametrize(("size", "path", "status"), [(5 << 20, "/predict/nope", 404), (65 << 20, "/predict", 413)])
def test_who_sends_much_is_told_why_it_is_refused(serving: Serving, size: int, path: str, status: int) -> None:
    told = serving.ask(bytes(size), path)
    assert told.status == status


def test_a_flood_of_headers_is_refused(serving: Serving) -> None:
    host, port = serving.url.split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\n")
        answer = b""
        try:
            for number in range(2000):
                client.sendall(b"X-%d: %s\r\n" % (number, b"y" * 100))
            answer = client.recv(1000)
        except (ConnectionResetError, BrokenPipeError):
            pass
    assert answer[8:12] in (b" 431", b"")
    assert serving.ask({"value": 1}).status == 200


def test_a_question_that_breaks_the_model_fails_alone(serving: Serving) -> None:
    with ThreadPoolExecutor(9) as pool:
        block = [pool.submit(serving.ask, {"value": 0, "sleep": 0.3}) for _ in range(2)]  # both replicas are busy
        time.sleep(0.1)
        asked = [pool.submit(serving.ask, {"value": one, "fail": one == 3}) for one in range(6)]
        told = [one.result() for one in asked]
        assert all(one.result().status == 200 for one in block)
    assert [one.status for one in told] == [200, 200, 200, 500, 200, 200]
    assert "ValueError: a bad one" in told[3].value["error"]["message"]


def test_where_memory_is_short_batches_are_smaller(serving: Serving) -> None:
    with ThreadPoolExecutor(40) as pool:
        told = list(pool.map(lambda one: serving.ask({"value": one, "sleep": 0.02}), range(40)))
    assert [one.value for one in told] == [2.0 * one for one in range(40)]


def test_batches_are_no_larger_than_there_is_memory_for(home: Living) -> None:
    """Fifty wait, and more of them at once than fit would be quicker: it is killed by nobody, though nothing is set."""
    served = Serving(home, "app.py:Dear", "--name", "dear", "--cpu", "0.1", "--memory", "300MiB", "--timeout", "5m")
    with ThreadPoolExecutor(50) as pool:
        told = list(pool.map(served.ask, range(50)))
    assert [one.status for one in told] == [200] * 50
    assert 4 <= served.metric("poise_batch_room") <= 12
    assert served.metric("serve_actual_batch_size_sum") / served.metric("serve_actual_batch_size_count") > 2
    assert "is retried" not in served.text and "another is started" not in served.text
    assert served.end() == 0


def test_a_killed_replica_loses_no_question(serving: Serving, home: Living) -> None:
    pids = [task.pid for job in home.client().jobs() for task in home.client().job(job.id).tasks if task.pid]
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(serving.ask, {"value": one, "sleep": 0.2}) for one in range(20)]
        time.sleep(0.1)
        os.kill(pids[0], signal.SIGKILL)
        assert [one.result().value for one in asked] == [2.0 * one for one in range(20)]
    until(lambda: serving.metric("serve_deployment_replica_healthy") == 2, "it is started again", lambda: serving.text)


def test_a_question_that_kills_whoever_reads_it_is_refused_by_itself(serving: Serving) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(serving.ask, {"value": one, "die": one == 1}) for one in range(4)]
        told = [one.result() for one in asked]
    assert [one.status for one in told] == [200, 502, 200, 200]
    assert "died while it was served" in told[1].value["error"]["message"]
    until(lambda: serving.metric("serve_deployment_replica_healthy") == 2, "both are back", lambda: serving.text)


def test_who_goes_away_takes_the_question_along(serving: Serving) -> None:
    before = serving.metric("serve_deployment_error_counter_total", reason="cancelled")
    connection = serving.connection()
    connection.request("POST", "/predict", json.dumps({"value": 1, "sleep": 1.5}))
    time.sleep(0.3)
    connection.close()
    until(
        lambda: serving.metric("serve_deployment_error_counter_total", reason="cancelled") == before + 1,
        "the gateway has noticed",
    )
    assert serving.ask({"value": 1}).status == 200, "and goes on"


def test_a_question_is_given_up_when_it_says(serving: Serving) -> None:
    told = serving.ask({"value": 1, "sleep": 1.0}, x_request_timeout_seconds="0.2")
    assert told.status == 504
    assert "not answered within 0.2 s" in told.value["error"]["message"]
    assert told.took < 0.9


def test_clients_that_never_get_on_are_dropped(serving: Serving, half_open: list[socket.socket]) -> None:
    def dropped(client: socket.socket) -> bool:
        client.settimeout(15)
        try:
            return client.recv(1) == b""
        except ConnectionResetError:
            return True

    assert all(dropped(client) for client in half_open)


@pytest.mark.timed
def test_under_five_times_what_it_can_do_the_accepted_are_in_time_and_the_rest_is_refused_at_once(home: Living) -> None:
    served = Serving(home, "app.py:Slow", "--objective", "200ms", "--batch", "4", "--name", "slow", "--cpu", "0.1")
    with ThreadPoolExecutor(300) as pool:
        began = time.monotonic()
        asked = []
        for number in range(2000):
            time.sleep(max(0.0, began + number / 1000 - time.monotonic()))
            asked.append(pool.submit(served.ask, number))
        told = [one.result() for one in asked]
    client = home.client()
    until(
        lambda: any(b"slow misses its objective" in event for event in client.events(after=0, follow=False)),
        "the missed objective is in the log",
        home.messages,
    )
    assert served.end() == 0
    accepted = sorted(one.took for one in told if one.status == 200)
    refused = [one for one in told if one.status == 503]
    assert len(accepted) + len(refused) == 2000
    assert 200 < len(accepted) < 800, "about 200 a second"
    assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
    # All 2,000 would wait for 5 seconds. The clients are threads of this process, on the same cores as everything else.
    assert accepted[len(accepted) // 2] < 1.5


def test_on_sigterm_what_was_accepted_is_answered(home: Living) -> None:
    served = Serving(home, "app.py:Model", "--name", "ending", "--cpu", "0.1")
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(served.ask, {"value": one, "sleep": 0.3}) for one in range(10)]
        time.sleep(0.2)
        served.process.send_signal(signal.SIGTERM)
        assert [one.result().status for one in asked] == [200] * 10
    assert served.end() == 0
    assert all(job.status != "running" or job.name != "ending-1" for job in home.client().jobs())


def test_a_model_that_cannot_be_loaded_says_why(home: Living) -> None:
    done = home.poise("serve", "app.py:Broken", "--port", "0", "--cpu", "0.1")
    assert done.code == 1
    assert "RuntimeError: no weights here" in done.err
    assert "app.py:Broken" in done.err
    done = home.poise("serve", "app.py:Modle", "--port", "0", "--cpu", "0.1", "--json")
    assert done.value["services"] == ["app"], "one value, that of the gateway when it listens"
    assert done.code == 1
    assert "it has no `Modle`" in done.err and "Model" in done.err


def test_a_file_says_the_same_and_what_is_wrong_in_it_is_told_where(home: Living) -> None:
    (home.work / "wrong.yaml").write_text("kind: service\nname: x y\nmodel: app.py\nbatch: 0\nreplica: 2\n")
    done = home.poise("serve", "wrong.yaml", "--port", "0")
    assert done.code == 1
    for told in ("wrong.yaml:2", "wrong.yaml:3", "wrong.yaml:4", "wrong.yaml:5", "replicas"):
        assert told in done.err
    (home.work / "right.yaml").write_text(
        "kind: service\nname: twice\nmodel: app.py:Model\nobjective: {latency_p99: 1s}\nresources: {cpu: 100m}\n"
    )
    served = Serving(home, "right.yaml")
    assert served.ask({"value": 4}, "/predict/twice").value == 8.0
    assert served.end() == 0


def test_a_model_is_told_in_what_precision_it_shall_compute(home: Living) -> None:
    (home.work / "wrong.yaml").write_text("kind: service\nname: wrong\nmodel: app.py:Precise\nprecision: int9\n")
    done = home.poise("serve", "wrong.yaml", "--port", "0")
    assert done.code == 1
    assert "wrong.yaml:4" in done.err and "int9" in done.err
    (home.work / "precise.yaml").write_text(
        "kind: service\nname: precise\nmodel: app.py:Precise\nprecision: int8\nresources: {cpu: 100m}\n"
    )
    served = Serving(home, "precise.yaml")
    assert served.ask({}).value == "int8"
    assert served.end() == 0
    served = Serving(home, "app.py:Precise", "--name", "flagged", "--precision", "bf16", "--cpu", "0.1")
    assert served.ask({}).value == "bf16"
    assert served.end() == 0


def test_with_a_cache_the_same_is_asked_once(home: Living) -> None:
    (home.work / "kept.yaml").write_text(
        "kind: service\nname: kept\nmodel: app.py:Counted\nresources: {cpu: 100m}\ncache: {size: 1MiB, ttl: 2s}\n"
    )
    served = Serving(home, "kept.yaml")
    with ThreadPoolExecutor(8) as pool:
        assert {one.value for one in pool.map(served.ask, ["same"] * 8)} == {1}
    assert served.ask("same").value == 1
    assert served.ask("other").value == 2
    assert served.metric("nv_cache_num_hits_per_model_total") == 1
    until(lambda: served.ask("same").value == 3, "what was kept is too old", lambda: served.text)
    assert served.end() == 0


def test_large_questions_are_answered_beside_small_ones_and_by_another_when_a_replica_dies(home: Living) -> None:
    served = Serving(home, "app.py:Raw", "--replicas", "2", "--cpu", "0.1")
    bodies = [os.urandom(size) for size in (0, 10, 127 << 10, 128 << 10, 1 << 20, 9 << 20)] * 3
    with ThreadPoolExecutor(len(bodies)) as pool:
        told = list(pool.map(served.ask, bodies))
    assert [(one.status, one.body) for one in told] == [(200, body) for body in bodies]
    assert served.ask(b"die" + bodies[4]).body == b"die" + bodies[4]
    assert served.end() == 0


def test_a_port_that_is_taken_is_told(home: Living) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = ended(home.start("serve", "app.py:Model", "--port", str(port)))
    assert done.code == 1
    assert "cannot listen" in done.err and "--port 0" in done.err


def test_whatever_a_model_does_wrong_is_told_and_costs_no_replica(home: Living) -> None:
    served = Serving(home, "app.py:Odd", "--name", "odd", "--batch", "2", "--cpu", "0.1")
    for body, status, says in (
        (b"key", 500, "decode raised: KeyError: 'key'"),
        (b"=exit", 500, "SystemExit: 3"),
        (b"=none", 500, "predict gave NoneType, not a list"),
        (b"=text", 500, "predict gave str, not a list"),
        (b"=surrogate", 500, "OSError: no file ?"),
        (b"=fine", 200, "fine"),
    ):
        told = served.ask(body)
        assert (told.status, says in told.body.decode()) == (status, True), told.body
    assert "0 of 1" not in served.text
    assert served.end() == 0


def test_a_model_that_leaves_while_it_loads_is_told(home: Living) -> None:
    served = Serving(home, "app.py:Leaves", "--name", "leaves", "--cpu", "0.1", ready=False)
    assert served.process.wait(30) == 1
    served.until_said("a replica of leaves cannot start")
    assert "exit code 0" in served.text


def test_a_replica_that_finds_no_room_is_told_why(home: Living) -> None:
    served = Serving(
        home, "app.py:Model", "--name", "wide", "--cpu", str(os.cpu_count()), "--replicas", "2", ready=False
    )
    served.until_said("CPU free")
    assert served.end() == 0


def test_a_gateway_that_is_killed_takes_its_replicas_along_and_no_other_gets_them(home: Living) -> None:
    """Those that load, and those that hang; it is started again at once, beside another of the same name."""
    pids, loaded = home.work / "pids", home.work / "loaded"

    def begun() -> list[int]:
        return [int(pid) for pid in pids.read_text().split()] if pids.exists() else []

    loading = Serving(home, "app.py:Lasting", "--name", "lasting", "--cpu", "0.1", ready=False)
    until(begun, "it loads", lambda: loading.text)
    other = Serving(home, "app.py:Model", "--name", "lasting", "--cpu", "0.1")
    loading.kill()
    until(lambda: not alive(begun()[0]), "it has ended while it loaded", begun)
    loaded.touch()
    again = Serving(home, "app.py:Lasting", "--name", "lasting", "--cpu", "0.1")
    assert again.ask({"value": 1}, x_request_timeout_seconds="0.3").status == 504
    assert other.ask({"value": 1}).value == 2.0
    again.kill()
    until(lambda: not alive(begun()[1]), "it has ended while it hung", begun)
    assert len(begun()) == 2
    assert other.metric("serve_deployment_replica_healthy") == 1
    assert other.end() == 0
    for served in (loading, again):
        served.end()


def test_told_to_end_while_it_starts_it_leaves_nothing_behind(home: Living) -> None:
    for pause, number in ((0.0, signal.SIGTERM), (0.05, signal.SIGHUP)):
        served = Serving(home, "app.py:Model", "--name", "early", "--cpu", "0.1", ready=False)
        served.until_said("http://")
        time.sleep(pause)
        served.process.send_signal(number)
        assert served.end() == 0
    assert all(job.status != "running" for job in home.client().jobs() if job.name.startswith("early"))


def test_without_a_control_plane_it_goes_on(home: Living) -> None:
    served = Serving(home, "app.py:Model", "--name", "alone", "--cpu", "0.1")
    for what in ("control", "agent", "control"):
        kill(home.pid(what))
        assert served.ask({"value": 1}).value == 2.0
        time.sleep(0.3)
    assert served.metric("serve_deployment_replica_healthy") == 1
    names = [job.name for job in home.client().jobs() if job.status == "running" and job.name.startswith("alone")]
    assert names == ["alone-1"]
    assert served.end() == 0


def test_a_file_elsewhere_and_an_address_that_is_none(home: Living) -> None:
    there = home.work / "there"
    there.mkdir()
    (there / "own.py").write_text("class Own:\n    def predict(self, batch):\n        return batch\n")
    (there / "own.yaml").write_text("kind: service\nname: own\nmodel: own.py:Own\nresources: {cpu: 100m}\n")
    served = Serving(home, "there/own.yaml")
    assert served.ask(1).value == 1
    assert served.end() == 0
    done = home.poise("serve", "app.py:Model", "--host", "no.such.host.invalid", "--port", "0")
    assert done.code == 1
    assert "--host" in done.err and "--port" not in done.err
