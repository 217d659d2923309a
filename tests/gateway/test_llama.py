"""The clients of OpenAI and Anthropic, a front, and llama.cpp's server behind it."""

from collections.abc import Iterator

import anthropic
import openai
import pytest

from gateway.front import HELLO, WEB, client, front
from gateway.llama import Llama


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a front before two servers, one of which makes embeddings, and that of the other."""
    writes, embeds = (tmp_path_factory.mktemp(name) for name in ("writes", "embeds"))
    with Llama(writes) as one, Llama(embeds, "embeddings") as two, front([one.url, two.url]) as (_, url):
        yield url, one.url


def test_models_are_those_of_all(both: tuple[str, str]) -> None:
    found = client(both[0]).models.list().data
    assert {model.id: model.owned_by for model in found} == {"tiny": "llamacpp", "tiny-embeddings": "llamacpp"}
    assert client(both[0]).models.retrieve("tiny").id == "tiny"


def test_a_chat_is_answered(both: tuple[str, str]) -> None:
    answer = client(both[0]).chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, temperature=0)
    assert answer.usage is not None and answer.usage.completion_tokens == 5
    again = client(both[1]).chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, temperature=0)
    assert answer.choices[0].message.content == again.choices[0].message.content


def test_a_stream_comes_token_by_token(both: tuple[str, str]) -> None:
    events = list(
        client(both[0]).chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=20,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert events[-1].usage is not None and events[-1].usage.completion_tokens == 20
    assert len(events) >= 10
    whole = client(both[0]).chat.completions.create(model="tiny", messages=HELLO, max_tokens=20, temperature=0)
    said = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert said == whole.choices[0].message.content


def test_a_stream_is_what_the_server_said(both: tuple[str, str]) -> None:
    """Byte for byte, but for what differs from answer to answer."""
    asked = {"model": "tiny", "prompt": "w260 w261", "max_tokens": 8, "temperature": 0, "stream": True}
    texts = [WEB.post(f"{url}/v1/completions", json=asked | {"cache_prompt": False}).text for url in both]
    lines = [[line[: line.find('"created"')] for line in text.split("\n")[:-8]] for text in texts]
    assert lines[0] == lines[1]
    assert all(text.endswith("data: [DONE]\n\n") for text in texts)


def test_embeddings_come_from_the_server_that_has_them(both: tuple[str, str]) -> None:
    found = client(both[0]).embeddings.create(model="tiny-embeddings", input=["w260", "w261"]).data
    assert [len(one.embedding) for one in found] == [64, 64]


def test_an_error_of_the_server_is_passed_on(both: tuple[str, str]) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        client(both[0]).embeddings.create(model="tiny", input="w260")
    assert raised.value.status_code == 501
    with pytest.raises(openai.NotFoundError, match="`tiny`, `tiny-embeddings`"):
        client(both[0]).completions.create(model="large", prompt="x")


def messages(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="sk-of-the-client", max_retries=0)


def test_a_response_is_answered_and_streamed(both: tuple[str, str]) -> None:
    asked = {"model": "tiny", "input": "w260 w261", "max_output_tokens": 8, "temperature": 0}
    answer = client(both[0]).responses.create(**asked)
    assert answer.usage is not None and answer.usage.output_tokens == 8
    events = list(client(both[0]).responses.create(**asked, stream=True))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == answer.output_text and events[-1].type == "response.completed"


def test_messages_are_answered_counted_and_streamed(both: tuple[str, str]) -> None:
    asked = {"model": "tiny", "max_tokens": 8, "messages": HELLO, "extra_body": {"temperature": 0}}
    answer = messages(both[0]).messages.create(**asked)
    assert answer.usage.output_tokens == 8 and answer.stop_reason == "max_tokens"
    with messages(both[0]).messages.stream(**asked) as stream:
        said = "".join(stream.text_stream)
    assert said == answer.content[0].text
    assert messages(both[0]).messages.count_tokens(model="tiny", messages=HELLO).input_tokens > 8


def test_tokens_are_made_and_read(both: tuple[str, str]) -> None:
    tokens = WEB.post(f"{both[0]}/tokenize", json={"model": "tiny", "content": "Hello"}).json()["tokens"]
    told = WEB.post(f"{both[0]}/detokenize", json={"model": "tiny", "tokens": tokens}).json()
    assert told["content"].endswith("Hello")


def test_a_route_that_the_server_was_not_started_with_is_a_clear_error(both: tuple[str, str]) -> None:
    refused = WEB.post(f"{both[0]}/v1/rerank", json={"model": "tiny", "query": "x", "documents": ["y"]})
    assert refused.status_code == 404 and "No upstream of `tiny` has /v1/rerank: `u0`" in refused.text
