"""A front before servers that keep the prompts they have read: real HTTP, and time that passes while they read."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest

from gateway.front import WEB, Front, front
from gateway.server import Model, Serving, until
from poise_serve.model.routing import RouteView
from poise_serve.openai import BLOCK
from poise_serve.policy.route import router_named

LETTERS_PER_SECOND = 100_000


def shortest(view: RouteView) -> str:
    return router_named("expected-delay").decide(view).replica


class Keeping(Model):
    """Reads what is new of a prompt at `LETTERS_PER_SECOND`, one after the other, and keeps the `kept` latest prompts.
    It tells what it had kept, if it `tells`; its metrics are `said`.
    """

    def __init__(self, name: str, kept: int = 100) -> None:
        super().__init__(name)
        self.words = 2
        self.kept = kept
        self.tells = True
        self.said = ""
        self.read = self.sent = 0
        self._prompts: list[str] = []
        self._turn = asyncio.Lock()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["path"] == "/metrics":
            await send({"type": "http.response.start", "status": 200 if self.said else 404, "headers": []})
            await send({"type": "http.response.body", "body": self.said.encode()})
        else:
            await super().__call__(scope, receive, send)

    async def _answer(self, scope: MutableMapping[str, Any], send: Any, asked: dict[str, Any]) -> None:
        prompt = json.dumps(asked["messages"])
        async with self._turn:
            known = max((_common(prompt, other) for other in self._prompts), default=0)
            new = len(prompt) - known
            self.sent += len(prompt)
            self.read += new
            await asyncio.sleep(new / LETTERS_PER_SECOND)
            self._prompts = [*self._prompts, prompt][-self.kept :] if self.kept else []
        self.usage: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "completion_tokens": self.words,
            "total_tokens": len(prompt),
        }
        if self.tells:
            self.usage["prompt_tokens_details"] = {"cached_tokens": known}
        await super()._answer(scope, send, asked)

    async def _whole(self, send: Any, status: int, document: Any) -> None:
        extra = {"usage": self.usage} if "choices" in document else {}
        await super()._whole(send, status, document | extra)

    async def _stream(self, scope: MutableMapping[str, Any], send: Any, common: dict[str, Any]) -> None:
        async def told(message: MutableMapping[str, Any]) -> None:
            if message.get("body") == b"data: [DONE]\n\n":
                event = json.dumps(common | {"choices": [], "usage": self.usage})
                message = {**message, "body": b"data: %b\n\ndata: [DONE]\n\n" % event.encode()}
            await send(message)

        await super()._stream(scope, told, common)


def _common(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.fixture
def servers() -> Iterator[tuple[list[Keeping], list[str]]]:
    made = [Keeping("a"), Keeping("b")]
    with Serving(made[0]) as one, Serving(made[1]) as other:
        yield made, [one.url, other.url]


def talk(url: str, conversations: int, turns: int, *, stream: bool = True) -> dict[int, list[str]]:
    """Conversations in turn, each with all that was said before; gives where each turn went."""
    went: dict[int, list[str]] = {number: [] for number in range(conversations)}
    said: dict[int, list[dict[str, str]]] = {number: [] for number in went}
    for turn in range(turns):
        for number in went:
            said[number].append({"role": "user", "content": f"{number}.{turn} " * 500})
            asked = {"model": "m", "messages": said[number], "stream": stream}
            answer = WEB.post(f"{url}/v1/chat/completions", json=asked)
            assert answer.status_code == 200
            went[number].append(answer.headers["x-poise-upstream"])
    return went


@pytest.mark.parametrize("stream", [True, False])
def test_conversations_go_on_where_their_prompts_are_kept(
    servers: tuple[list[Keeping], list[str]], stream: bool
) -> None:
    models, urls = servers
    with front(urls, choose=shortest) as (_, url):
        went = talk(url, conversations=6, turns=5, stream=stream)
    stayed = sum(len(set(places[1:])) == 1 for places in went.values())
    assert stayed >= 4
    assert set(Counter(place for places in went.values() for place in places)) == {"u0", "u1"}
    assert sum(model.read for model in models) < 0.6 * sum(model.sent for model in models)


def size_of(app: Front, name: str) -> float:
    return app.upstreams.pool.prefixes(name).size


def test_a_server_that_keeps_nothing_and_tells_so_is_believed(servers: tuple[list[Keeping], list[str]]) -> None:
    models, urls = servers
    for model in models:
        model.kept = 0
    with front(urls, choose=shortest) as (app, url):
        before = size_of(app, "u0")
        talk(url, conversations=2, turns=12)
        assert min(size_of(app, name) for name in ("u0", "u1")) < before / 2


@pytest.mark.parametrize(
    ("said", "size"),
    [
        ('vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="1000"} 1.0\n', 16000),
        ('vllm:cache_config_info{block_size="16",kv_cache_size_tokens="9000",num_gpu_blocks="1000"} 1.0\n', 9000),
        ('vllm:cache_config_info{block_size="16",kv_cache_size_tokens="None",num_gpu_blocks="1000"} 1.0\n', 16000),
        ('vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="1000"} 1.0\n', 0),
        ('sglang:max_total_num_tokens{model_name="m"} 471258.0\n', 471258),
    ],
)
def test_what_servers_keep_is_read_from_their_metrics(
    servers: tuple[list[Keeping], list[str]], said: str, size: float
) -> None:
    models, urls = servers
    models[0].said = f"# HELP x\n{said}other 1\n"
    with front(urls, choose=shortest) as (app, _):
        until(lambda: size_of(app, "u0") == size)
        assert size_of(app, "u1") > 0, "it has no metrics"


def test_metrics_that_make_no_sense_change_nothing(servers: tuple[list[Keeping], list[str]]) -> None:
    models, urls = servers
    models[0].said = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\nsglang:max_total_num_tokens e\n'
    with front(urls, choose=shortest) as (app, url):
        assert size_of(app, "u0") == size_of(app, "u1") > 0
        assert talk(url, conversations=1, turns=2)


def test_what_is_configured_is_not_asked_for(servers: tuple[list[Keeping], list[str]]) -> None:
    models, urls = servers
    models[0].said = 'sglang:max_total_num_tokens{model_name="m"} 5\n'
    with front(urls, choose=shortest, each={"cache": 12345}) as (app, _):
        assert [size_of(app, name) for name in ("u0", "u1")] == [12345, 12345]


def test_a_short_prompt_has_no_block_and_is_served(servers: tuple[list[Keeping], list[str]]) -> None:
    _, urls = servers
    with front(urls, choose=shortest) as (_, url):
        asked = {"model": "m", "messages": [{"role": "user", "content": "x" * (BLOCK // 4)}]}
        assert WEB.post(f"{url}/v1/chat/completions", json=asked).status_code == 200
