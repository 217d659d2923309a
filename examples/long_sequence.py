"""A long text in a pipeline: layers in as many stages as there are workers, the text in chunks that go through them.

    python examples/long_sequence.py                 # alone
    poise submit examples/long-sequence.yaml         # two stages

A small transformer over bytes learns from Python's own reference manual for some seconds, and then reads on in it where
it has not learned, as one sequence: each layer remembers the chunk before, so that every byte sees the `CHUNK` bytes
before it, wherever it is cut. While one stage is at a chunk, the stage before it is at the next one.
"""

import math
import os
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from poise_train.pipeline import Pipeline

WIDTH, HEADS, LAYERS, CHUNK = 64, 4, 4, 128
BATCH, MANY = 2, 4  # chunks of a micro-batch, and micro-batches of a step
STEPS = 20
READ, READS = 24, 5  # chunks that are read at once, and how often


class Block(nn.Module):
    """A block of a transformer in which a byte sees those of its own chunk, and, when it reads, of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.all_three, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.before: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        parts = self.all_three(self.first(row)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        keys, values, known = key, value, 0
        if not self.training:
            if self.before is not None:
                keys, values = (torch.cat(pair, 2) for pair in zip(self.before, (key, value), strict=True))
            self.before, known = (key, value), keys.shape[2] - key.shape[2]
        own, other = known + torch.arange(key.shape[2])[:, None], torch.arange(keys.shape[2])
        sees = (other <= own) & (other > own - CHUNK)
        seen = scaled_dot_product_attention(turned(query, known), turned(keys, 0), values, attn_mask=sees)
        row = row + self.mixed(seen.transpose(1, 2).flatten(2))
        return row + self.narrow(gelu(self.wide(self.second(row))))


def turned(row: torch.Tensor, first: int) -> torch.Tensor:
    """By angles that tell how far two places are from each other, whatever they are counted from (RoPE)."""
    half = row.shape[-1] // 2
    angles = torch.arange(first, first + row.shape[2])[:, None] * 10_000 ** (-torch.arange(half) / half)
    low, high = row.chunk(2, -1)
    return torch.cat((low * angles.cos() - high * angles.sin(), low * angles.sin() + high * angles.cos()), -1)


def model() -> nn.Sequential:
    """The same on all workers."""
    torch.manual_seed(0)
    end = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256))
    return nn.Sequential(nn.Embedding(256, WIDTH), *(Block() for _ in range(LAYERS)), end)


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output.flatten(0, 1), target.flatten())


def main() -> None:
    torch.set_num_threads(1)
    text = torch.frombuffer(bytearray("\n".join(topics.values()), "utf-8"), dtype=torch.uint8).long()
    unread = len(text) - READ * READS * CHUNK - 1

    def window(start: int, chunks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Chunks one after the other, and for each byte the one that follows it."""
        return tuple(text[at : at + chunks * CHUNK].view(chunks, CHUNK) for at in (start, start + 1))

    inputs, target = window(0, BATCH)
    pipe = Pipeline(model(), inputs, loss=loss, target=target, micro_batches=MANY)
    optimizer = torch.optim.AdamW(pipe.parameters(), 3e-3)
    for step in range(STEPS):
        bits = pipe.step(*window(step * 7919 * CHUNK % (unread - BATCH * MANY * CHUNK), BATCH * MANY)) / math.log(2)
        optimizer.step()
        optimizer.zero_grad()
    if pipe.last:
        print(f"trained for {STEPS} steps, {bits:.2f} bits per byte\n{pipe.told()}\n")

    shared = Path(os.environ.get("POISE_GANG_DIR", ".")) / "long-sequence"
    pipe.save(shared, STEPS)
    reader = Pipeline(model().eval(), window(0, 1)[0], micro_batches=READ)
    reader.restore(shared)
    total = 0.0
    for read in range(READS):
        inputs, target = window(unread + read * READ * CHUNK, READ)
        output = reader.answer(inputs)
        if output is not None:
            total += float(loss(output, target)) / math.log(2) / READS
    if reader.last:
        print(f"read {READ * READS * CHUNK} bytes that were new, {total:.2f} bits per byte\n{reader.told()}")


if __name__ == "__main__":
    main()
