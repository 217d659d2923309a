"""The clients of OpenAI and Anthropic, a front, and two of vLLM's servers behind it."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import openai
import pydantic
import pytest

from gateway.front import HELLO, WEB, Front, client, front
from gateway.server import SOON, until
from gateway.test_protocols import messages
from gateway.vllm import LONGEST, Vllm, needs_vllm, write_model
from poise_serve.model.routing import RouteView
from poise_serve.policy.route import DEFAULT_ROUTER, router_named

needs_vllm()
pytestmark = pytest.mark.slow

GREEDY = {"model": "tiny", "temperature": 0}
LONG = LONGEST - 100
RUNNING, WRITTEN = "vllm:num_requests_running", "vllm:generation_tokens_total"


def by_default(view: RouteView) -> str:
    return router_named(DEFAULT_ROUTER).decide(view).replica


class Both(NamedTuple):
    """Two servers, which the front calls `u0` and `u1`, and the front."""

    servers: list[Vllm]
    app: Front
    url: str

    def limit(self, most: int) -> None:
        """From now on the front sends each of them at most so many requests at once."""
        self.app.change(upstreams=[told | {"limit": most} for told in self.app.document["upstreams"]])

    def answering(self, url: str = "") -> openai.OpenAI:
        return client(url or self.url, timeout=120)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder = tmp_path_factory.mktemp("vllm")
    write_model(folder)
    with Vllm(folder, "u0") as one, Vllm(folder, "u1") as other:
        for server in (one, other):
            server.wait()
        with front([one.url, other.url], each={"limit": 2}, choose=by_default) as (app, url):
            yield Both([one, other], app, url)


# OpenAI's client


def test_the_models_are_listed(both: Both) -> None:
    found = both.answering().models.list().data
    assert [(model.id, model.owned_by) for model in found] == [("tiny", "vllm")]
    assert both.answering().models.retrieve("tiny").id == "tiny"


def test_a_chat_is_answered_as_by_the_server_itself(both: Both) -> None:
    said: Any = [
        {"role": "developer", "content": "Talk like a pirate."},
        {"role": "user", "content": "How do I check if a Python object is an instance of a class?"},
    ]
    answers = [
        both.answering(url).chat.completions.create(**GREEDY, messages=said, max_tokens=20)
        for url in ("", both.servers[0].url)
    ]
    assert answers[0].usage is not None and answers[0].usage.completion_tokens == 20
    assert len(answers[0].choices[0].message.content or "") == 20
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_a_stream_comes_token_by_token_with_its_usage(both: Both) -> None:
    asked: Any = GREEDY | {"messages": HELLO, "max_tokens": 20}
    usage = {"include_usage": True}
    events = list(both.answering().chat.completions.create(**asked, stream=True, stream_options=usage))
    assert events[-1].usage is not None and events[-1].usage.completion_tokens == 20
    whole = both.answering().chat.completions.create(**asked)
    said = [event.choices[0].delta.content or "" for event in events if event.choices]
    assert "".join(said) == whole.choices[0].message.content and len([one for one in said if one]) >= 10


def test_a_completion_has_its_choices_and_log_probabilities(both: Both) -> None:
    asked: Any = {"model": "tiny", "prompt": "Say this is a test", "max_tokens": 7, "n": 2, "logprobs": 1}
    answer = both.answering().completions.create(**asked)
    assert [len(choice.text) for choice in answer.choices] == [7, 7]
    assert all(choice.logprobs is not None and len(choice.logprobs.tokens or ()) == 7 for choice in answer.choices)


class Answer(pydantic.BaseModel):
    is_sure: bool
    mood: Literal["merry", "sad"]


def test_an_answer_has_the_form_that_was_asked_for(both: Both) -> None:
    told = both.answering().chat.completions.parse(**GREEDY, messages=HELLO, max_tokens=100, response_format=Answer)
    assert isinstance(told.choices[0].message.parsed, Answer)


def test_an_asynchronous_client_is_answered(both: Both) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{both.url}/v1", api_key="none", timeout=120) as asking:
            stream = await asking.chat.completions.create(**GREEDY, messages=HELLO, max_tokens=20, stream=True)
            return [event.choices[0].delta.content or "" async for event in stream]

    assert len("".join(asyncio.run(ask()))) == 20


def test_a_response_is_answered_and_streamed(both: Both) -> None:
    asked: Any = GREEDY | {
        "instructions": "You are a coding assistant that talks like a pirate.",
        "input": "How do I check if a Python object is an instance of a class?",
        "max_output_tokens": 20,
    }
    answer = both.answering().responses.create(**asked)
    assert answer.usage is not None and answer.usage.output_tokens == 20 and len(answer.output_text) == 20
    events = list(both.answering().responses.create(**asked, stream=True))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == answer.output_text and events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_errors_of_the_front_and_of_the_server_are_raised(both: Both) -> None:
    with pytest.raises(openai.NotFoundError, match="There are `tiny`"):
        both.answering().completions.create(model="large", prompt="x")
    with pytest.raises(openai.BadRequestError, match=f"{LONGEST}"):
        both.answering().completions.create(model="tiny", prompt="x" * 2 * LONGEST)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        both.answering().completions.create(model="tiny", prompt="x", temperature=-1)
    assert both.app.metric("poise_upstream_ejections_total", server="u0") == 0, "a request was wrong, and no server"


def test_a_stream_that_its_client_leaves_ends_on_the_server(both: Both) -> None:
    def told(name: str) -> float:
        return sum(server.metric(name) for server in both.servers)

    written = told(WRITTEN)
    asked: Any = {"model": "tiny", "prompt": "x", "max_tokens": LONG, "stream": True}
    with both.answering().completions.create(**asked) as stream:
        next(stream)
    until(lambda: told(WRITTEN) > written and told(RUNNING) == 0)
    assert told(WRITTEN) - written < LONG


# Anthropic's client


def test_messages_are_answered_counted_and_streamed(both: Both) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 20, "system": "Be brief.", "messages": HELLO}
    asked["extra_body"] = {"temperature": 0}
    answer = messages(both.url, timeout=120).messages.create(**asked)
    assert answer.usage.output_tokens == 20 and answer.stop_reason == "max_tokens"
    with messages(both.url, timeout=120).messages.stream(**asked) as stream:
        said = "".join(stream.text_stream)
        assert stream.get_final_message().usage.output_tokens == 20
    assert said == answer.content[0].text
    counted = messages(both.url, timeout=120).messages.count_tokens(model="tiny", system="Be brief.", messages=HELLO)
    assert counted.input_tokens == answer.usage.input_tokens


# What vLLM has beside these


def test_tokens_are_made_and_read(both: Both) -> None:
    made = WEB.post(f"{both.url}/tokenize", json={"model": "tiny", "prompt": "Hello"}).json()
    assert made["count"] == len("Hello")
    told = WEB.post(f"{both.url}/detokenize", json={"model": "tiny", "tokens": made["tokens"]}).json()
    assert told["prompt"] == "Hello"


def test_a_route_that_the_model_has_not_is_a_clear_error(both: Both) -> None:
    refused = WEB.post(f"{both.url}/v1/rerank", json={"model": "tiny", "query": "x", "documents": ["y"]})
    assert refused.status_code == 404 and "No upstream of `tiny` has /v1/rerank: `u0`, `u1`" in refused.text


# Prompts that a server keeps


def kept(both: Both, place: int) -> float:
    """The tokens that the front believes a server to keep."""
    return both.app.upstreams.pool.prefixes(f"u{place}").size


def test_the_front_knows_how_many_tokens_a_server_keeps(both: Both) -> None:
    for place, server in enumerate(both.servers):
        blocks, size = (int(server.label("vllm:cache_config_info", what)) for what in ("num_gpu_blocks", "block_size"))
        told = int(server.label("vllm:cache_config_info", "kv_cache_size_tokens"))
        assert kept(both, place) == told == blocks * size


def test_a_conversation_stays_where_its_prompt_is_kept(both: Both) -> None:
    hits = "vllm:prefix_cache_hits_total"
    before = [server.metric(hits) for server in both.servers]
    talk: Any = [{"role": "system", "content": "You know all the words of this text. " * 36}]
    went: list[str] = []
    cached: list[int] = []
    for turn in range(6):
        talk.append({"role": "user", "content": f"And what of {turn}?"})
        asked = GREEDY | {"messages": talk, "max_tokens": 5}
        told = both.answering().chat.completions.with_raw_response.create(**asked)
        went.append(told.headers["x-poise-upstream"])
        answer: Any = told.parse()
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        talk.append({"role": "assistant", "content": answer.choices[0].message.content})
    home = int(went[0].removeprefix("u"))
    rose = [server.metric(hits) - known for server, known in zip(both.servers, before, strict=True)]
    assert went == [f"u{home}"] * 6
    assert min(cached[1:]) >= 1280 and rose[home] == sum(cached) and rose[1 - home] == 0


def test_what_a_server_tells_of_its_cache_in_tokens_does_not_shrink_it(both: Both) -> None:
    """A line break is two letters in a request, and one token: the server keeps more letters than tokens."""
    sizes = [kept(both, place) for place in (0, 1)]
    for question in range(4):
        text = f"{question} What is said of this? " * 30
        asked: Any = {"model": "tiny", "max_tokens": 5, "system": "\n" * 800}
        asked["messages"] = [{"role": "user", "content": text}]
        answer = messages(both.url, timeout=120).messages.create(**asked)
    assert answer.usage.cache_read_input_tokens == 768
    assert [kept(both, place) for place in (0, 1)] == sizes


# Servers that are killed


class Load:
    """Clients that ask one after the other, until they are to end; what they got."""

    def __init__(self, both: Both, clients: int, max_retries: int = 0) -> None:
        self.answered: list[str] = []
        self.failed: list[Exception] = []
        self._over = threading.Event()
        self._numbers = itertools.count()
        self._ask = both.answering().with_options(max_retries=max_retries).completions.with_raw_response
        self._threads = [threading.Thread(target=self._go) for _ in range(clients)]

    def _go(self) -> None:
        while not self._over.is_set():
            asked: Any = GREEDY | {"prompt": f"{next(self._numbers)} " * 20, "max_tokens": 20}
            try:
                self.answered.append(self._ask.create(**asked).headers["x-poise-upstream"])
            except openai.OpenAIError as error:
                self.failed.append(error)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


class Stream:
    """An answer that a thread reads, until it is to leave: its letters, and in the end an error."""

    def __init__(self, both: Both) -> None:
        asked: Any = GREEDY | {"prompt": "x", "max_tokens": LONG, "stream": True}
        told = both.answering().completions.with_raw_response.create(**asked)
        self.server = told.headers["x-poise-upstream"]
        self.text, self.error = "", ""
        self._leaves = threading.Event()
        self._reading = threading.Thread(target=self._read, args=(told.parse(),), daemon=True)
        self._reading.start()

    def _read(self, events: Any) -> None:
        try:
            with events:
                for event in events:
                    self.text += event.choices[0].text
                    if self._leaves.is_set():
                        return
        except openai.APIError as error:
            self.error = str(error)

    def end(self) -> None:
        self._reading.join(SOON)
        assert not self._reading.is_alive()

    def leave(self) -> None:
        self._leaves.set()
        self.end()


def test_a_server_that_is_killed_loses_only_the_answers_that_it_had_begun(both: Both) -> None:
    streams = [Stream(both) for _ in range(4)]
    assert sorted(stream.server for stream in streams) == ["u0", "u0", "u1", "u1"]
    both.limit(5)
    with Load(both, clients=6) as load:
        until(lambda: {"u0", "u1"} <= set(load.answered))
        both.servers[0].kill()
        before = len(load.answered)
        until(lambda: len(load.answered) >= before + 30)
    assert load.failed == [] and set(load.answered[-20:]) == {"u1"}
    lost, others = ([stream for stream in streams if stream.server == name] for name in ("u0", "u1"))
    for stream in lost:
        stream.end()
        assert "`u0` was lost in the middle of its answer" in stream.error
    seen = [len(stream.text) for stream in others]
    until(lambda: all(len(stream.text) > length for stream, length in zip(others, seen, strict=True)))
    for stream in others:
        stream.leave()
        assert not stream.error


def test_a_server_comes_back_and_one_whose_engine_is_killed_fails_only_what_it_computed(both: Both) -> None:
    both.servers[0].kill()
    both.servers[0].start()
    both.servers[0].wait()
    both.limit(5)
    with Load(both, clients=6, max_retries=2) as load:
        until(lambda: {"u0", "u1"} <= set(load.answered))
        both.servers[0].kill_engine()
        before = len(load.answered)
        until(lambda: len(load.answered) >= before + 30)
    assert load.failed == [] and set(load.answered[-20:]) == {"u1"}
    failed = both.app.metric("vllm:request_errors_total", server="u0", model="tiny", error_type="500")
    assert failed <= 6, "each client lost at most the request that it had there"
