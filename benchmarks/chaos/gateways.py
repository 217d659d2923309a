"""Row 20: what serves is killed, slow, overloaded."""

import signal
import time

from system.living import Living, kill, until
from system.serving import Serving
from system.test_gateway_killed import APP, CLIENTS, Asking, kill_gateway

from chaos.turns import Stage, Turn

REPLICAS = 2
MORE = 200
"""Questions that are answered before a fault and after it."""


def replica_killed(living: Stage) -> Turn:
    """In the midst of a batch, while eight ask all the time: each question gets its answer, asked again where it has to
    be. *noticed*: until the gateway says that one is missing; *recovered*: from then until both are ready.
    """
    serving = _serving(living)
    with Asking(serving) as asking:
        asking.more(MORE)
        victim = _replicas(living)[0]
        killed = time.monotonic()
        kill(victim)
        _until_healthy(serving, REPLICAS - 1)
        noticed = time.monotonic()
        _until_healthy(serving, REPLICAS)
        recovered = time.monotonic()
        asking.more(MORE)
    assert (asking.wrong, asking.broken) == ([], 0)
    _end(serving)
    return Turn([noticed - killed], [recovered - noticed])


def gateway_killed(living: Stage) -> Turn:
    """While eight ask all the time, and ask again where their connection breaks. *recovered*: until another gateway has
    answered.
    """
    serving = _serving(living)
    with Asking(serving) as asking:
        asking.more(MORE)
        jobs = [job.id for job in living.client().jobs() if job.status == "running"]
        killed = time.monotonic()
        kill_gateway(serving)
        noticed = time.monotonic()
        asking.more(1)
        recovered = time.monotonic()
        _until_healthy(serving, REPLICAS)
        asking.more(MORE)
    assert asking.wrong == []
    assert asking.broken <= CLIENTS, "each asked again once"
    assert [job.id for job in living.client().jobs() if job.status == "running"] == jobs, "replicas were taken over"
    _end(serving)
    return Turn([noticed - killed], [recovered - noticed])


def both_killed(living: Stage) -> Turn:
    """Both processes of a gateway at one moment, under `poise up`. *recovered*: until a question is answered, at the
    same address and with the same replicas.
    """
    serving = _serving(living)
    jobs = [job.id for job in living.client().jobs() if job.status == "running"]
    assert serving.ask(2).value == 4.0
    killed = time.monotonic()
    serving.kill()
    until(lambda: _answers(serving), "it is there again", living.messages)
    recovered = time.monotonic()
    _until_healthy(serving, REPLICAS)
    assert [job.id for job in living.client().jobs() if job.status == "running"] == jobs, "replicas were taken over"
    (lock,) = living.home.services.glob("*.lock")
    kill(int(lock.read_text()), signal.SIGTERM)
    until(lambda: not list(living.home.services.iterdir()), "it ends", living.messages)
    assert serving.end() == -signal.SIGKILL
    return Turn([], [recovered - killed])


def _answers(serving: Serving) -> bool:
    try:
        return bool(serving.ask(2).value == 4.0)
    except OSError:
        return False


def _serving(living: Stage) -> Serving:
    living.file("app.py", APP)
    living.up()
    serving = Serving(living, "app.py:Model", "--replicas", str(REPLICAS), "--cpu", "0.1")
    until(lambda: f"{REPLICAS} of {REPLICAS}" in serving.text, "both are ready", lambda: serving.text)
    assert serving.gateway()
    return serving


def _replicas(living: Living) -> list[int]:
    """Their processes."""
    client = living.client()
    return [task.pid for job in client.jobs() for task in client.job(job.id).tasks if task.pid]


def _until_healthy(serving: Serving, count: int) -> None:
    until(
        lambda: serving.metric("serve_deployment_replica_healthy") == count, f"{count} are ready", lambda: serving.text
    )


def _end(serving: Serving) -> None:
    assert serving.end() == 0
