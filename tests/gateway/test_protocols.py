"""Routes besides chats and completions: passed on where a server has them, with all that chats have."""

import hashlib
import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from prometheus_client import CollectorRegistry

from gateway.front import HELLO, WEB, Front, client, front, least_outstanding
from gateway.server import Serving, models
from poise_serve.door import Door
from poise_serve.keys import Keys, Usage
from poise_serve.openai import MESSAGES, RESPONSES, cached_share, read_question


def messages(url: str, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="sk-of-the-client", **{"max_retries": 0} | options)


def test_clients_of_openai_and_anthropic_get_their_answers() -> None:
    with models("a") as ((a,), urls), front(urls, keys={"A_KEY": "sk-of-a"}, each={"key_from": "A_KEY"}) as (_, url):
        assert client(url).responses.create(model="m", input="Hello").output_text == "Hello"
        answer = messages(url).messages.create(model="m", max_tokens=10, messages=HELLO)
        assert answer.to_dict()["content"] == [{"type": "text", "text": "Hello"}] and answer.usage.input_tokens == 11
        assert a.headers[1]["x-api-key"] == "sk-of-a" and "sk-of-the-client" not in str(a.headers)
        assert a.asked[1]["max_tokens"] == 10


def test_rerank_and_tokenize_need_no_model_where_there_is_one() -> None:
    with models("a", "b") as ((a, b), urls):
        with front(urls[:1]) as (_, url):
            for path, asked in (("/v1/rerank", {"query": "x", "documents": ["y"]}), ("/tokenize", {"content": "x"})):
                assert WEB.post(f"{url}{path}", json=asked).json()["by"] == "a"
            assert a.asked == [{"query": "x", "documents": ["y"]}, {"content": "x"}]
        b.models = ("n",)
        with front(urls) as (_, url):
            refused = WEB.post(f"{url}/tokenize", json={"prompt": "x"})
            assert refused.status_code == 400 and "there are `m`, `n`" in refused.text
            assert WEB.post(f"{url}/tokenize", json={"model": "n", "prompt": "x"}).json()["by"] == "b"


def test_a_server_without_the_route_is_passed_over_and_not_held_to_be_ill() -> None:
    with models("a", "b") as ((a, _), urls), front(urls) as (app, url):
        a.lacks = {"/v1/messages"}
        answers = [messages(url).messages.create(model="m", max_tokens=1, messages=HELLO) for _ in range(6)]
        assert {answer.to_dict()["by"] for answer in answers} == {"b"}
        assert len(a.asked) == 1, "it is asked once, and then known"
        assert app.metric("poise_upstream_ejections_total", server="u0") == 0
        a.asked.clear()
        for _ in range(4):
            client(url).completions.create(model="m", prompt="x")
        assert len(a.asked) == 2, "it has the others"


def test_where_no_server_has_the_route_the_error_says_who_has() -> None:
    with models("a", "b") as ((a, b), urls):
        a.lacks, b.models = {"/v1/messages", "/v1/responses"}, ("n",)
        with front(urls) as (_, url):
            messages(url).messages.create(model="n", max_tokens=1, messages=HELLO)
            with pytest.raises(anthropic.NotFoundError) as raised:
                messages(url).messages.create(model="m", max_tokens=1, messages=HELLO)
            said = "No upstream of `m` has /v1/messages: `u0` said so. `u1` has it for the model `n`"
            assert raised.value.body == {"type": "error", "error": {"type": "not_found_error", "message": said}}
            with pytest.raises(openai.NotFoundError, match="No other upstream is known to have it"):
                client(url).responses.create(model="m", input="Hello")


def test_retries_and_limits_are_those_of_chats() -> None:
    with models("a", "b") as ((a, b), urls), front(urls) as (app, url):
        a.status = 503
        for _ in range(4):
            messages(url).messages.create(model="m", max_tokens=1, messages=HELLO)
        assert app.metric("poise_upstream_retries_total", server="u0", reason="503") > 0
        b.status = 503
        with pytest.raises(anthropic.APIStatusError):
            messages(url).messages.create(model="m", max_tokens=1, messages=HELLO)


def test_a_cut_stream_of_messages_is_an_error_for_its_client() -> None:
    with models("a") as ((a,), urls), front(urls) as (_, url):
        a.events = {"/v1/messages": ['event: ping\ndata: {"type": "ping"}\n\n'] * 4}
        a.cut_after = 2
        stream = messages(url).messages.create(model="m", max_tokens=9, messages=HELLO, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="was lost in the middle of its answer"):
            list(stream)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/rerank", "/tokenize"])
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 1}', b"[" * 5000, b'{"model": "\xff"}'])
def test_bad_input_is_refused_with_the_shape_of_a_request(path: str, body: bytes) -> None:
    with models("a") as (_, urls), front(urls) as (_, url):
        refused = WEB.post(f"{url}{path}", content=body)
        assert refused.status_code == 400 and refused.json()["error"]["message"]


def keyed(tmp_path: Path, app: Front, **limits: str) -> tuple[Door, Usage]:
    file = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"sk-of-the-client").hexdigest()
    more = "".join(f", {name}: {value}" for name, value in limits.items())
    file.write_text(f"kind: keys\nkeys: [{{name: app, sha256: {digest}{more}}}]\n")
    usage = Usage(CollectorRegistry())
    return Door(app, keys=Keys(file, None), usage=usage), usage


def test_keys_and_usage_are_those_of_chats(tmp_path: Path) -> None:
    with models("a") as (_, urls):
        app = Front(urls, {}, {}, {}, least_outstanding)
        door, usage = keyed(tmp_path, app, tokens="40/d")
        with Serving(door, during=app.running) as serving:
            url = serving.url
            assert WEB.post(f"{url}/v1/messages", json={"model": "m"}).status_code == 401
            messages(url).messages.create(model="m", max_tokens=1, messages=HELLO)
            client(url).responses.create(model="m", input="Hello")
            key = {"authorization": "Bearer sk-of-the-client"}
            WEB.post(f"{url}/v1/rerank", json={"query": "x", "documents": ["y"]}, headers=key)
            WEB.post(f"{url}/tokenize", json={"content": "x" * 1000}, headers=key)
            with pytest.raises(anthropic.RateLimitError, match="has used its tokens"):
                for _ in range(3):
                    messages(url).messages.create(model="m", max_tokens=1, messages=HELLO)

    def spent(kind: str) -> float:
        return float(usage.tokens.labels("app", "default", "m", kind)._value.get())

    assert spent("prompt") == 11 + 11 + 7 + 11 and spent("completion") == 5 + 5 + 5


def test_tokens_of_a_streams_beginning_are_counted(tmp_path: Path) -> None:
    """Anthropic's streams say the tokens of the prompt in their first event, and those of the answer in the last."""

    begun = '{"usage":{"cache_read_input_tokens":20,"input_tokens":5,"output_tokens":1}}'
    parts = [begun, *["x" * 3000] * 4, '{"usage":{"output_tokens":15}}']
    with models("a") as ((a,), urls):
        a.events = {"/v1/messages": [f"event: e\ndata: {part}\n\n" for part in parts]}
        front_app = Front(urls, {}, {}, {}, least_outstanding)
        door, usage = keyed(tmp_path, front_app)
        with Serving(door, during=front_app.running) as serving:
            asked = {"model": "m", "messages": HELLO, "stream": True}
            answer = httpx.post(f"{serving.url}/v1/messages", json=asked, headers={"x-api-key": "sk-of-the-client"})
            assert answer.status_code == 200
    told = {kind: usage.tokens.labels("app", "default", "m", kind)._value.get() for kind in ("prompt", "completion")}
    assert told == {"prompt": 25, "completion": 15}


@pytest.mark.parametrize(
    ("usage", "share"),
    [
        ('{"prompt_tokens":100,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":80}}', 0.8),
        ('{"prompt_tokens":100,"completion_tokens":9,"prompt_tokens_details":null}', None),
        ('{"input_tokens":100,"input_tokens_details":{"cached_tokens":80},"output_tokens":9}', 0.8),
        ('{"input_tokens":30,"output_tokens":9,"cache_read_input_tokens":60,"cache_creation_input_tokens":10}', 0.6),
        ('{"cache_read_input_tokens":0,"input_tokens":30,"output_tokens":9}', 0.0),
    ],
)
def test_the_part_of_a_prompt_that_was_kept_is_read_from_every_usage(usage: str, share: float | None) -> None:
    assert cached_share(b'"usage":%b}' % usage.encode()) == share


@pytest.mark.parametrize(
    ("path", "before", "text"), [(MESSAGES, "system", "messages"), (RESPONSES, "instructions", "input")]
)
def test_prompts_with_the_same_instructions_begin_with_the_same_blocks(path: str, before: str, text: str) -> None:
    blocks = []
    for asked in "xy":
        prompt = read_question(path, json.dumps({"model": "m", text: asked * 1000, before: "s" * 1000}).encode()).prompt
        assert prompt is not None
        blocks.append(prompt.blocks)
    assert blocks[0][:3] == blocks[1][:3]
    assert not set(blocks[0][4:]) & set(blocks[1][4:])
