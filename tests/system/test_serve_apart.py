"""Replicas on machines that only a network joins to that of their gateway: one of them is switched off."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from system.apart import CONTROL, NODES, Apart
from system.living import PATIENCE, POISE, Living, until
from system.networks import HERE, Networks

pytestmark = [pytest.mark.root, pytest.mark.skipif(not HERE, reason="root makes networks, with `ip`")]

APP = """
import os, time

class Model:
    def predict(self, batch):
        time.sleep(0.05)
        return [os.getpid() for _ in batch]
"""
SERVICE = "{kind: service, name: app, model: 'app.py:Model', replicas: 2, resources: {cpu: 2}}"
URL = "http://127.0.0.1:8080"
ASKS = """
import json, sys, threading, time, urllib.error, urllib.request
told, until = [], time.monotonic() + float(sys.argv[2])
def ask():
    while (began := time.monotonic()) < until:
        asked = urllib.request.Request(sys.argv[1] + "/predict", b"1", {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                said = json.load(answer)
        except urllib.error.HTTPError as error:
            said = -error.code
        told.append((said, time.monotonic() - began))
threads = [threading.Thread(target=ask) for _ in range(4)]
[of.start() for of in threads]
[of.join() for of in threads]
print(json.dumps(told))
"""


class Hidden(Apart):
    """As on machines that share nothing: nodes do not see where replicas of the gateway's machine find it."""

    def started_by(self, node: str) -> list[str]:
        services = self.living.home.services
        services.mkdir(mode=0o700, exist_ok=True)
        hidden = f'mount -t tmpfs none {services} && exec "$@"'
        return [*super().started_by(node), "unshare", "--mount", "sh", "-c", hidden, "sh"]


@contextlib.contextmanager
def serving(living: Living) -> Iterator[Hidden]:
    living.file("app.py", APP)
    living.file("app.yaml", SERVICE)
    networks = Networks((CONTROL, *NODES))
    apart, gateway = None, None
    try:
        apart = Hidden(living, networks)
        same_code = ("--env", "PYTHONPATH") if "PYTHONPATH" in os.environ else ()
        with living.home.messages.open("ab") as messages:
            gateway = subprocess.Popen(
                [*networks.inside(CONTROL), POISE, "serve", "app.yaml", "--port", "8080", *same_code],
                stdout=subprocess.DEVNULL,
                stderr=messages,
                cwd=living.work,
                env=living.environment(),
            )
        until(lambda: replicas(apart) == 2, "both are ready", living.messages)
        yield apart
    finally:
        if gateway is not None:
            gateway.terminate()
            gateway.wait(PATIENCE)
        if apart is not None:
            apart.close()
        networks.close()


def inside(apart: Hidden, program: str, *arguments: str) -> str:
    run = [*apart.networks.inside(CONTROL), sys.executable, "-c", program, *arguments]
    return subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE, check=False).stdout


def replicas(apart: Hidden) -> int:
    text = inside(apart, f"import urllib.request; print(urllib.request.urlopen('{URL}/metrics').read().decode())")
    ready = [line for line in text.splitlines() if line.startswith("serve_deployment_replica_healthy")]
    return round(sum(float(line.rpartition(" ")[2]) for line in ready))


def asked(apart: Hidden, seconds: float) -> list[tuple[int, float]]:
    return [(pid, took) for pid, took in json.loads(inside(apart, ASKS, URL, f"{seconds:g}"))]


def test_what_a_replica_was_asked_on_a_machine_that_is_gone_is_asked_of_another(living: Living) -> None:
    with serving(living) as apart:
        assert len({pid for pid, _ in asked(apart, 2)}) == 2, "both answer"
        apart.switch_off("a")
        told = asked(apart, 5)
        assert [said for said, _ in told if said < 0] == [], "none is refused"
        slowest = max(took for _, took in told)
        assert 1 < slowest < 13, f"{slowest:.1f} s: what was on its way when the machine went"
        until(lambda: replicas(apart) == 1, "the replica of the machine that went is given up")
        assert max(took for _, took in asked(apart, 2)) < 2, "it is asked no more"
