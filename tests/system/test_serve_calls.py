"""`poise serve` with models that take requests one by one: several at once, and answers that stream."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from system.living import Living, kill, until
from system.serving import Serving

APP = '''
import asyncio, os, time
from collections.abc import AsyncIterator, Iterator
import msgspec

class Ask(msgspec.Struct):
    words: int = 3
    fail_at: int = -1
    die_at: int = -1
    forever: bool = False

class Words:
    """A plain generator."""
    def predict(self, ask: Ask) -> Iterator[dict]:
        try:
            for word in range(ask.words):
                if word == ask.fail_at:
                    raise ValueError("a bad word")
                if word == ask.die_at:
                    os._exit(1)
                yield {"word": word}
                while ask.forever:
                    time.sleep(0.01)
                    yield {"word": word}
        finally:
            open("closed", "a").close()

    def example(self):
        return Ask()

class Waves:
    """Waits until so many are there."""
    there = 0

    async def predict(self, many: int) -> int:
        self.there += 1
        while self.there < many:
            await asyncio.sleep(0.01)
        return self.there

class Bytes:
    async def predict(self, ask: Ask) -> AsyncIterator[bytes]:
        for word in range(ask.words):
            if word == ask.fail_at:
                raise ValueError("a bad word")
            yield b"%d;" % word

    def encode(self, part):
        return part

class Lasting:
    """Says when its client has gone."""
    async def predict(self, ask: Ask) -> int:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            open("cancelled", "w").close()
            raise
'''

GANG = '''
import os, socket

class Halves:
    """Rank 0 asks rank 1 for its half."""
    def load(self):
        self.place = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
        if os.environ["POISE_RANK"] == "0":
            with socket.create_server(self.place) as listening:
                self.other, _ = listening.accept()

    def follow(self):
        while True:
            try:
                other = socket.create_connection(self.place)
            except ConnectionRefusedError:
                continue
            break
        open("follows", "w").write(str(os.getpid()))
        while data := other.recv(100):
            other.sendall(str(int(data) / 2).encode())

    def predict(self, batch: list[int]) -> list[float]:
        made = []
        for one in batch:
            self.other.sendall(str(one).encode())
            made.append(one / 2 + float(self.other.recv(100)))
        return made
'''

FILES = {
    "app.py": APP,
    "halves/model.py": GANG,
    "halves/config.yaml": "model: model.py:Halves\nworkers: 2\nresources: {cpu: 0.1}\n",
    "waves.yaml": "kind: service\nname: waves\nmodel: app.py:Waves\nconcurrency: 4\nresources: {cpu: 0.1}\n",
    "words.yaml": "kind: service\nname: words\nmodel: app.py:Words\ntimeout: 5s\nresources: {cpu: 0.1}\n",
    "bytes.yaml": "kind: service\nname: bytes\nmodel: app.py:Bytes\nresources: {cpu: 0.1}\n",
    "lasting.yaml": "kind: service\nname: lasting\nmodel: app.py:Lasting\nresources: {cpu: 0.1}\n",
    "kept.yaml": "kind: service\nname: kept\nmodel: app.py:Words\ncache: {}\nresources: {cpu: 0.1}\n",
}


@pytest.fixture(scope="module")
def serving(home: Living) -> Iterator[Serving]:
    files = [f"{name}.yaml" for name in ("waves", "words", "bytes", "lasting")]
    served = Serving(home, *files, "halves")
    until(lambda: served.ask(b"", "/readyz", "GET").status == 200, "all are ready", lambda: served.text)
    yield served
    assert served.end() == 0


def events(body: bytes) -> list[Any]:
    return [json.loads(event.partition(b"data: ")[2]) for event in body.split(b"\n\n") if event]


def test_what_a_generator_yields_are_the_events_of_a_stream(serving: Serving) -> None:
    told = serving.ask({"words": 3}, "/predict/words")
    assert (told.status, told.headers["content-type"]) == (200, "text/event-stream")
    assert events(told.body) == [{"word": 0}, {"word": 1}, {"word": 2}]


def test_the_first_part_is_there_before_the_last_is_made(serving: Serving) -> None:
    connection = serving.connection()
    connection.request("POST", "/predict/words", json.dumps({"forever": True}))
    answer = connection.getresponse()
    assert answer.fp.readline().startswith(b"data: ") or answer.fp.readline()
    connection.close()
    until(lambda: serving.metric("serve_replica_processing_queries") == 0, "nothing is served any more")


def test_bytes_are_passed_on_as_they_are(serving: Serving) -> None:
    told = serving.ask({"words": 4}, "/predict/bytes")
    assert (told.body, told.headers["content-type"]) == (b"0;1;2;3;", "application/octet-stream")


def test_a_coroutine_answers_several_at_once(serving: Serving) -> None:
    with ThreadPoolExecutor(4) as clients:
        told = list(clients.map(lambda _: serving.ask(b"4", "/predict/waves"), range(4)))
    assert [one.status for one in told] == [200] * 4


def test_an_error_in_the_middle_is_the_last_event(serving: Serving) -> None:
    told = serving.ask({"words": 3, "fail_at": 2}, "/predict/words")
    assert told.status == 200
    *parts, last = events(told.body)
    assert parts == [{"word": 0}, {"word": 1}]
    assert b"event: error\n" in told.body
    assert "a bad word" in last["error"]["message"]


def test_an_error_before_the_first_part_is_an_ordinary_error(serving: Serving) -> None:
    told = serving.ask({"words": 3, "fail_at": 0}, "/predict/words")
    assert told.status == 500
    assert "a bad word" in told.value["error"]["message"]
    assert serving.ask({"words": "x"}, "/predict/words").status == 422
    assert serving.ask(b"{", "/predict/words").status == 400


def test_a_client_that_goes_cancels_its_coroutine(serving: Serving, home: Living) -> None:
    connection = serving.connection()
    connection.request("POST", "/predict/lasting", b"{}")
    until(lambda: serving.metric("serve_replica_processing_queries") == 1, "it is served")
    connection.close()
    until(lambda: (home.work / "cancelled").exists(), "it is cancelled", lambda: serving.text)


def test_a_replica_that_dies_in_the_middle_ends_its_stream_and_another_serves(serving: Serving) -> None:
    told = serving.ask({"words": 3, "die_at": 1}, "/predict/words")
    *parts, last = events(told.body)
    assert parts == [{"word": 0}]
    assert "died" in last["error"]["message"]
    until(lambda: serving.ask({"words": 1}, "/predict/words").status == 200, "another serves", lambda: serving.text)


def test_what_takes_longer_than_its_time_ends(serving: Serving) -> None:
    told = serving.ask({"forever": True}, "/predict/words")
    assert "time" in events(told.body)[-1]["error"]["message"]


def test_a_stream_cannot_be_kept(home: Living) -> None:
    served = Serving(home, "kept.yaml", ready=False)
    served.until_said("needs whole answers")
    assert served.end() != 0


def test_a_replica_of_two_processes_is_one_gang(serving: Serving, home: Living) -> None:
    """In a folder of its own, which has its name."""
    assert serving.ask(b"21", "/predict/halves").value == 21.0
    follower = home.work / "halves" / "follows"
    before = int(follower.read_text())
    kill(before)
    until(lambda: follower.read_text() not in ("", str(before)), "both are started anew", lambda: serving.text)
    until(lambda: serving.ask(b"4", "/predict/halves").status == 200, "they answer", lambda: serving.text)
