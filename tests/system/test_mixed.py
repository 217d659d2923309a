"""A service and training on one node: who yields to whom, when, and why is told."""

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from system.living import Living, until
from system.serving import Serving

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"

POLICY = "kind: policy\nname: ours\nextends: poise\npreempt: {min_run: 1s}\n"

TRAINING = """
trap 'echo saved; exit 1' TERM
echo "begins, epoch $POISE_EPOCH, GPU $CUDA_VISIBLE_DEVICES"
while true; do sleep 0.05; done
"""


@contextmanager
def load(url: str, clients: int) -> Iterator[None]:
    """So many clients, each of which asks again as soon as it is answered, or a little later where it is refused."""
    over = threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection(url, timeout=30)
        while not over.is_set():
            connection.request("POST", "/predict", b"1")
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                time.sleep(0.05)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_training_yields_while_the_objective_of_a_service_is_missed_and_comes_back(living: Living) -> None:
    """Both devices are taken. A batch of four takes a replica 20 ms, so it answers 200 in a second: eighty at once are
    twice what it answers within 200 ms. With two replicas they are not.
    """
    living.file("ours.yaml", POLICY)
    living.up("--fleet", str(EXAMPLES / "two-devices.yaml"), "--policy", "ours.yaml")
    served = Serving(living, str(EXAMPLES / "shared.yaml"))
    served.until_said("1 of 1..2 ready")
    training = living.poise("submit", "--name", "training", "--gpu", "1", "--", "sh", "-c", TRAINING).text.strip()
    client = living.client()
    until(lambda: client.job(training).status == "running", "training runs", living.messages)
    time.sleep(1.2)  # longer than what has just begun is left alone

    with load(served.url, 80):
        began = time.monotonic()
        served.until_said("2 of 1..2 ready")
        took = time.monotonic() - began
        assert client.job(training).status == "pending"
        before = served.metric("serve_deployment_request_counter_total")
        time.sleep(2)
        rate = (served.metric("serve_deployment_request_counter_total") - before) / 2
    assert took < 15, "2 s on an idle machine: 1 s until it is seen, and what a replica takes to start"
    assert rate > 220, "more than one replica can answer"
    until(lambda: client.job(training).status == "running", "training is back", lambda: served.text)

    told = living.poise("explain", "training").text
    assert "asked to yield to j3.main: digits-2 serves digits: P99 is " in told
    assert "the objective is 200 ms" in told
    assert "attempt 2 of main placed on box" in told
    assert "submitted by " in (replica := living.poise("explain", "digits-2").text)
    assert ": digits-2 serves digits: P99 is " in replica
    assert living.poise("logs", "training").text.splitlines() == [
        "begins, epoch 1, GPU 1",
        "saved",
        "begins, epoch 2, GPU 1",
    ]
    assert "training has the rest: the service's weight is" in served.text
    assert "serves until it is ended" in living.poise("explain", "digits-1").text
    assert served.end() == 0
    assert living.poise("cancel", "training").code == 0
