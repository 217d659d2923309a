"""A gateway that is killed: another takes over, with the replicas that there are, and nobody is refused."""

import http.client
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from system.living import Living, alive, kill, until
from system.serving import Serving

APP = """
import os, time

class Model:
    def load(self):
        with open("loads", "a") as loads:
            loads.write("x")

    def predict(self, batch: list[float]) -> list[float]:
        time.sleep(0.02)
        return [2 * one for one in batch]

class Newer(Model):
    def load(self):
        pass

class Never(Model):
    def load(self):
        while not os.path.exists("go"):
            time.sleep(0.01)
        raise RuntimeError("no weights here")

class Worse(Newer):
    def predict(self, batch):
        raise ValueError("no")
"""

FILES = {"app.py": APP}
CLIENTS = 8


def kill_gateway(serving: Serving) -> None:
    before = serving.gateway()
    kill(before)
    until(lambda: serving.gateway() not in (0, before), "another has begun", lambda: serving.text)


class Asking:
    """Asks all the time, and again where the connection breaks, as clients do; each question is idempotent."""

    def __init__(self, serving: Serving) -> None:
        self.host, port = serving.url.split(":")
        self.port = int(port)
        self.right, self.broken, self.wrong = 0, 0, list[str]()
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._asking = [self._pool.submit(self._ask, number) for number in range(CLIENTS)]

    def _ask(self, number: int) -> None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        while not self._over.wait(0.005):  # else what is started again waits for the processor
            try:
                connection.request("POST", "/predict", str(number))
                answer = connection.getresponse()
                body = answer.read()
            except ConnectionRefusedError as error:
                self.wrong.append(str(error))
            except (ConnectionError, http.client.HTTPException):
                self.broken += 1
                connection.close()
            else:
                if (answer.status, body) == (200, str(2.0 * number).encode()):
                    self.right += 1
                else:
                    self.wrong.append(f"{answer.status} {body!r}")
        connection.close()

    def more(self, answers: int) -> None:
        """Wait for so many more that are right."""
        seen = self.right
        until(lambda: self.right > seen + answers, "it goes on", lambda: f"{self.wrong}, {self.broken} broken")

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for asking in self._asking:
            asking.result()
        self._pool.shutdown()


def test_another_takes_over_and_no_question_is_lost(home: Living) -> None:
    serving = Serving(home, "app.py:Model", "--replicas", "2", "--cpu", "0.1")
    until(lambda: "2 of 2" in serving.text, "both are ready", lambda: serving.text)
    jobs = [job.id for job in home.client().jobs() if job.status == "running"]
    with Asking(serving) as asking:
        for _ in range(2):
            asking.more(30)
            kill_gateway(serving)
            until(
                lambda: serving.metric("serve_deployment_replica_healthy") == 2, "both are back", lambda: serving.text
            )
    assert asking.wrong == []
    assert asking.broken <= 2 * CLIENTS, "each asked again once for each gateway that was killed"
    assert [job.id for job in home.client().jobs() if job.status == "running"] == jobs, "its replicas were taken over"
    assert (home.work / "loads").read_text() == "xx", "and had nothing to load again"
    assert serving.text.count("the gateway was ended by SIGKILL; another takes over") == 2
    kill(home.client().job(jobs[0]).tasks[0].pid)
    until(lambda: "1 of 2" in serving.text, "it notices", lambda: serving.text)
    until(lambda: serving.metric("serve_deployment_replica_healthy") == 2, "it keeps them", lambda: serving.text)
    assert serving.end() == 0
    assert not [job for job in home.client().jobs() if job.status == "running"]
    assert not list(home.home.services.iterdir())


def test_either_of_its_processes_may_be_killed_and_under_poise_up_both(living: Living) -> None:
    """One of them has the number that a shell tells. What is killed is there again, at the same address."""
    living.up()
    living.file("app.py", APP)
    serving = Serving(living, "app.py:Newer", "--name", "watched", "--cpu", "0.1")
    served = serving.gateway()

    def watcher() -> int:
        return int(next(living.home.services.glob("*.lock")).read_text())

    def kill_watcher(known: int) -> None:
        assert watcher() == known
        kill(known)
        until(lambda: watcher() != known, "another watches", lambda: serving.text)

    with Asking(serving) as asking:
        kill_watcher(serving.process.pid)
        kill_watcher(watcher())
        asking.more(10)
        assert alive(served) and asking.broken == 0
        kill(served)
        serving.until_said("the gateway was killed; another takes over")
        asking.more(10)
    assert asking.wrong == []
    assert asking.broken <= CLIENTS
    before = watcher()
    kill(before, signal.SIGSTOP)  # or it would take over; and it goes last, or the gateway would start another watcher
    both = [process for process, arguments in living.processes().items() if "serve" in arguments]
    for process in sorted(both, key=lambda process: process == before):
        kill(process)
    until(lambda: "takes over" in living.messages() and watcher() != before, "it is started again", living.messages)
    until(lambda: serving.ask(2).value == 4.0, "it answers", living.messages)
    kill(watcher(), signal.SIGTERM)
    until(lambda: not list(living.home.services.iterdir()), "it ends as it was told", living.messages)
    until(lambda: not [job for job in living.client().jobs() if job.status == "running"], "so does its replica")
    assert "Traceback" not in living.messages() + serving.text
    serving.end()


@pytest.mark.parametrize(("model", "ends"), [("Newer", "promoted"), ("Worse", "rolled back")])
def test_a_trial_that_is_over_stays_over(home: Living, model: str, ends: str) -> None:
    home.file(
        "service.yaml",
        "kind: service\nname: tried\nmodel: app.py:Model\nresources: {cpu: 100m}\n"
        f"canary: {{model: 'app.py:{model}', share: [100%], after: 20, latency: 100}}\n",
    )
    serving = Serving(home, "service.yaml")
    with Asking(serving) as asking:
        serving.until_said(f"the canary is {ends}")
        left = "tried-canary-1" if ends == "promoted" else "tried-1"
        until(lambda: [job.name for job in home.client().jobs() if job.status == "running"] == [left], "one is left")
        kill_gateway(serving)
        asking.more(20)
    assert asking.wrong == []
    assert serving.text.count("on trial") == 1
    assert [job.name for job in home.client().jobs() if job.status == "running"] == [left]
    assert serving.end() == 0


def test_a_canary_that_cannot_start_is_rolled_back_by_whoever_takes_over(home: Living) -> None:
    home.file(
        "service.yaml",
        "kind: service\nname: tried\nmodel: app.py:Newer\nresources: {cpu: 100m}\n"
        "canary: {model: 'app.py:Never', share: [50%]}\n",
    )
    serving = Serving(home, "service.yaml")
    until(
        lambda: [job for job in home.client().jobs() if job.name == "tried-canary-1" and job.status == "running"],
        "the canary loads",
        lambda: serving.text,
    )
    kill_gateway(serving)
    home.file("go", "")
    serving.until_said("the canary is rolled back: a replica of tried-canary cannot start: ")
    assert "no weights here" in serving.text
    assert serving.end() == 0


def test_a_gateway_that_crashes_says_where(home: Living) -> None:
    serving = Serving(home, "app.py:Newer", "--cpu", "0.1")
    before = serving.gateway()
    kill(before, signal.SIGSEGV)
    serving.until_said("the gateway was ended by SIGSEGV; another takes over")
    assert "Fatal Python error: Segmentation fault" in serving.text
    assert "uvloop" in serving.text[serving.text.index("Fatal") :], "what it was at"
    assert serving.end() == 0


def test_one_that_is_killed_as_soon_as_it_begins_is_not_started_for_ever(home: Living) -> None:
    serving = Serving(home, "app.py:Newer", "--name", "brief", "--cpu", "0.1")
    for _ in range(2):
        kill_gateway(serving)
    kill(serving.gateway())
    assert serving.process.wait(30) == 128 + signal.SIGKILL
    serving.end()
    until(
        lambda: not [job for job in home.client().jobs() if job.status == "running"], "its replicas end", home.messages
    )
