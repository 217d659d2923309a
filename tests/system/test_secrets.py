"""Secrets of real jobs, whoever is killed: commands read them, and no file of the home holds them."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from leaks import leaks

from system.living import Diary, Living, kill, until
from system.serving import Serving

VALUE = "hf_correct-horse-battery-staple"
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()

JOB = """
kind: graph
name: next
secrets: [HF_TOKEN]
tasks:
  a:
    run: |
      printf %s "$HF_TOKEN$KEY" | sha256sum
      [ "$POISE_EPOCH" != 1 ] || kill -9 $$
    resources: {cpu: CPUS}
  b:
    needs: [a]
    run: printf %s "$KEY" | sha256sum
    secrets: {KEY: {file: key.txt}}
"""


def answers(living: Living) -> list[bytes]:
    """What the commands say of all that there is."""
    asked = (
        ("ls", "--all", "--json"), ("show", "next", "--json"), ("show", "next"), ("explain", "next", "--json"),
        ("events", "--json"), ("audit", "--json"), ("report", "--json"), ("logs", "next"),
    )  # fmt: skip
    told = [living.poise(*arguments) for arguments in asked]
    return [text for done in told for text in (done.out, done.err.encode())]


def test_a_job_that_waits_has_its_secrets_whoever_is_killed_and_when_it_is_tried_again(living: Living) -> None:
    living.up()
    cpus = sum(node.cpu for node in living.client().nodes()) // 1000
    diary = Diary(living.work / "diary")
    first = living.poise("submit", "--cpu", str(cpus), "--", "sh", "-c", diary.held()).text.strip()
    until(lambda: "start" in diary.path.read_text(), "the first one runs")
    living.file("job.yaml", JOB.replace("CPUS", str(cpus)))
    key = living.file("key.txt", f"{VALUE}\n")
    assert living.poise("submit", "job.yaml", "--json", HF_TOKEN=VALUE).code == 0
    key.unlink()
    kill(living.pid("control"))
    kill(living.pid("agent"))
    until(lambda: living.poise("show", "next").code == 0, "it is back", living.messages)
    waiting = answers(living)
    diary.release()
    assert living.poise("wait", "next").code == 0, living.poise("show", "next").text
    shown = living.poise("show", "next", "--json").value
    assert shown["secrets"] == ["HF_TOKEN", "KEY"]
    assert [attempt["outcome"] for attempt in shown["tasks"][0]["attempts"]] == ["killed"]
    assert living.poise("logs", "--no-prefix", "next").text.count(DIGEST) == 3
    assert living.poise("wait", first).code == 0
    assert leaks(VALUE, living.root, *waiting, *answers(living)) == []
    assert living.poise("down").code == 0
    assert leaks(VALUE, living.root, *answers(living)) == [], "nor once all have ended"


APP = """
import hashlib, os

class Model:
    def predict(self, batch: list) -> list:
        return [hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest()] * len(batch)

    def example(self):
        return 1
"""


def test_replicas_of_a_service_have_them(shared: Living) -> None:
    shared.file("app.py", APP)
    token = shared.file("token.txt", VALUE)
    shared.file("service.yaml", "kind: service\nname: s\nmodel: app.py:Model\nsecrets: {HF_TOKEN: {file: token.txt}}\n")
    serving = Serving(shared, "service.yaml")
    assert serving.ask(1).value == DIGEST
    token.unlink()
    assert leaks(VALUE, shared.root) == []
    serving.end()
    assert leaks(VALUE, shared.root) == []


def test_run_and_functions_pass_them_on(shared: Living) -> None:
    hashed = ["--secret", "HF_TOKEN", "--", "sh", "-c", "printf %s $HF_TOKEN | sha256sum"]
    assert DIGEST in shared.poise("run", *hashed, HF_TOKEN=VALUE).text
    assert shared.poise("run", *hashed, "--json").code == 125
    program = Path(__file__).with_name("program.py")
    done = subprocess.run(
        [sys.executable, str(program), "secret"],
        cwd=shared.work,
        env=shared.environment(HF_TOKEN=VALUE),
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == [DIGEST, [DIGEST, DIGEST]]
    assert leaks(VALUE, shared.root) == []
