"""The blocks of prompts that a server is believed to keep, so that their tokens need not be read again.

A prompt is cut into blocks of equal length, and a block is named by a hash of the prompt from its start to the end of
this block. Equal names therefore mean equal prefixes, as in the prefix caches of vLLM and SGLang.

The router notes the prompts that it sends to a server, and forgets the least recently used blocks beyond its `size`.
The size is that of the configuration or of the server's metrics (`become`). Answers that tell how many tokens were
cached correct it (`told`): it becomes smaller if a block was gone that was believed to be kept, and larger if a block
was kept that was forgotten here.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

USUAL = 500_000.0
"""Tokens that a server of unknown size is believed to keep: the order of what a large model leaves free on its devices.
"""

MOST_BLOCKS = 100_000
"""Maximum number of blocks that are believed to be kept by one server, and of those that were forgotten last."""

CORRECTED = 0.2
"""Part of the size by which one answer corrects it."""

LEAST = 1.0
MOST = 1e12
"""Limits of a size that is learned, in tokens."""


class Found(NamedTuple):
    """Number of blocks at the start of a prompt that are believed to be kept, and of those that are noted at all."""

    kept: int
    noted: int


class Prefixes:
    """Blocks that one server is believed to keep."""

    def __init__(self, size: float = USUAL) -> None:
        """`size` is in tokens; 0 if the server keeps nothing."""
        self.size = size
        self._kept: dict[int, None] = {}  # by block, in order of last use
        self._gone: dict[int, None] = {}  # those that were forgotten last

    def become(self, size: float) -> None:
        """Set the size that the server tells, in tokens."""
        self.size = min(max(0.0, size), MOST)

    def forget(self) -> None:
        """Forget all blocks: the server has restarted."""
        self._kept.clear()
        self._gone.clear()

    def cached(self, blocks: Sequence[int]) -> int:
        """Return the number of blocks at the start of a prompt that are believed to be kept. Takes logarithmic time,
        because the later blocks of a prompt are forgotten before the earlier ones.
        """
        return _beginning(blocks, 0, self._kept)

    def found(self, blocks: Sequence[int]) -> Found:
        """Return what is known of the start of a prompt."""
        kept = self.cached(blocks)
        return Found(kept, _beginning(blocks, kept, self._gone))

    def use(self, blocks: Sequence[int], block: float) -> None:
        """Note a prompt that is sent there, in blocks of `block` tokens each."""
        for one in reversed(blocks):  # the last block is the first to be forgotten
            self._kept.pop(one, None)
            self._kept[one] = None
            self._gone.pop(one, None)
        while len(self._kept) > min(MOST_BLOCKS, self.size / block):
            one = next(iter(self._kept))
            del self._kept[one]
            self._gone[one] = None
        while len(self._gone) > MOST_BLOCKS:
            del self._gone[next(iter(self._gone))]

    def told(self, before: Found, cached: int) -> None:
        """Correct the size. `before`: what was known of a prompt when it was sent; `cached`: the number of its blocks
        that were kept, as the server tells. That is rounded down to whole blocks of the server, and letters per token
        differ within a prompt, so only less than half shows that a block was gone.
        """
        if cached < before.kept // 2:
            self.size = max(LEAST, self.size * (1.0 - CORRECTED))
        elif before.kept < cached <= before.noted:
            self.size = min(MOST, max(LEAST, self.size) * (1.0 + CORRECTED))


def _beginning(blocks: Sequence[int], low: int, known: Mapping[int, None]) -> int:
    """Return the number of blocks up to the first unknown one at `low` or after it, by bisection."""
    high = len(blocks)
    while low < high:
        middle = (low + high) // 2
        if blocks[middle] in known:
            low = middle + 1
        else:
            high = middle
    return low


def blocks_of(prompt: bytes, length: int, most: int, seed: bytes = b"") -> tuple[int, ...]:
    """Name the whole blocks of `length` bytes of a prompt, at most the first `most`. Prompts with another `seed` have
    other names.
    """
    name, view, names = crc32(seed), memoryview(prompt), []
    for start in range(0, min(len(prompt) // length, most) * length, length):
        name = crc32(view[start : start + length], name)
        names.append(name)
    return tuple(names)


__all__ = ["USUAL", "Found", "Prefixes", "blocks_of"]
