"""Read requests to language models as short jobs: the traces of Azure, BurstGPT and Mooncake.

    azure      TIMESTAMP,ContextTokens,GeneratedTokens            (dates)
               arrival_s,input_tokens,output_tokens               (seconds)
    burstgpt   Timestamp,Model,Request tokens,Response tokens,…   (seconds; a response of no tokens is a failed request)
    mooncake   {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}   (milliseconds)
               arrival_ms,input_tokens,output_tokens,prefix_block_ids

A device stands for one replica of a model, and serves `Options.requests` concurrently. A request takes the time of its
prompt plus the time of each token: those of Llama-2-70B on eight devices, as in `PACES`. Interference between requests
and shared prefixes of prompts (`hash_ids`) are left to `poise rehearse`.

Sources: Patel et al., "Splitwise", ISCA 2024, github.com/Azure/AzurePublicDataset (CC BY 4.0); Wang et al., "BurstGPT",
2024, github.com/HPMLL/BurstGPT; Qin et al., "Mooncake", FAST 2025, github.com/kvcache-ai/Mooncake, FAST25-release
(Apache-2.0).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from poise.decoding import json_decoder
from poise.model.resources import SHARED_CAP, WHOLE
from poise.model.workload import Workload
from poise_lab.traces.making import Maker, Said
from poise_lab.traces.options import Options
from poise_lab.traces.rows import BadRow, Row, Tally, header_of, lines_of, table

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
SECONDS = ("arrival_s", "input_tokens", "output_tokens")
BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
MILLISECONDS = ("arrival_ms", "input_tokens", "output_tokens")
BLOCKS = "prefix_block_ids"
MAX_TOKENS = 10_000_000
KIND = "request"


class Rate(NamedTuple):
    """Seconds per prompt token, and per generated token."""

    prompt: float
    token: float


PACES = {"H100": Rate(1.04e-4, 0.0298), "A100-80": Rate(1.89e-4, 0.0449)}
"""Llama-2-70B on eight devices, one request at a time: the prompt of 8,192 tokens in 848 and 1,544 ms, and a token
after a prompt of 512 to 1,024 in 29.8 and 44.9 ms (github.com/Mutinifni/splitwise-sim @ 8f99e7d, data/perf_model.csv).
"""


class _Request(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


class Call(NamedTuple):
    """A request: seconds since an arbitrary origin, the number of prompt tokens and the number of generated tokens.
    `blocks` of 512 tokens each: prompts that begin with the same blocks begin with the same tokens.
    """

    at: float
    prompt: int
    tokens: int
    blocks: tuple[int, ...] = ()


def read_azure(path: Path, options: Options) -> Workload:
    """Read Azure's trace. Raises `SpecError` if the file has another format."""
    return _read("azure", path, options)


def read_burstgpt(path: Path, options: Options) -> Workload:
    """Read BurstGPT's trace. Raises `SpecError` if the file has another format."""
    return _read("burstgpt", path, options)


def read_mooncake(path: Path, options: Options) -> Workload:
    """Read Mooncake's trace. Raises `SpecError` if the file has another format."""
    return _read("mooncake", path, options)


def is_record(line: str) -> bool:
    """Return whether a line looks like a Mooncake record."""
    return line.lstrip().startswith("{") and '"input_length"' in line and '"timestamp"' in line


def calls(name: str, path: Path, tally: Tally) -> Iterator[Call]:
    """Return the requests of a file in one of these formats, in file order. Raises `SpecError`."""
    if name == "mooncake" and is_record(next((line for _, line in lines_of(path)), "")):
        yield from _records(path, tally)
        return
    names, scale = {"mooncake": (MILLISECONDS, 1e-3), "burstgpt": (BURSTGPT, 1.0)}.get(name, (AZURE, 1.0))
    if name == "azure" and not set(AZURE) <= set(header_of(path)):
        names = SECONDS
    at, prompt, tokens = names
    for row in table(path, tally, names):
        try:
            instant, asked = row.instant(at, scale), row.whole(prompt, most=MAX_TOKENS)
            made = row.whole(tokens, most=MAX_TOKENS)
            blocks = _blocks(row) if names is MILLISECONDS else ()
        except BadRow as why:
            tally.bad(row.line, why)
            continue
        if not made and names is BURSTGPT:
            tally.leave_out("the request failed")
        else:
            yield Call(instant, asked, made, blocks)


def _blocks(row: Row) -> tuple[int, ...]:
    """Return the blocks of a prompt; none without that column."""
    try:
        return tuple(map(int, row.text(BLOCKS).split()))
    except ValueError:
        raise BadRow("the blocks are not numbers", BLOCKS, "whole numbers", row.text(BLOCKS)[:40]) from None


def _records(path: Path, tally: Tally) -> Iterator[Call]:
    decode = json_decoder(_Request).decode
    for number, line in lines_of(path):
        try:
            record = decode(line)
        except msgspec.MsgspecError as error:
            why = BadRow("the line is no request", need="timestamp, input_length, output_length", have=str(error))
            tally.bad(number, why)
            continue
        prompt, tokens = record.input_length, record.output_length
        if 0 <= prompt <= MAX_TOKENS and 0 <= tokens <= MAX_TOKENS:
            yield Call(record.timestamp / 1000, prompt, tokens, record.hash_ids)
        else:
            need = f"0 to {MAX_TOKENS} tokens"
            tally.bad(number, BadRow("the lengths are absurd", "input_length", need, f"{prompt}, {tokens}"))


def _read(name: str, path: Path, options: Options) -> Workload:
    maker = _maker(name, path, options)
    for call in calls(name, path, maker.tally):
        maker.add(_said(call, options))
    return maker.workload()


def _maker(name: str, path: Path, options: Options) -> Maker:
    """Return a maker without checkpoints: a request that is lost starts over."""
    maker = Maker(name, path, msgspec.structs.replace(options, checkpoint=0, saves=False, save=0, restore=0))
    maker.throughputs = {f"{KIND}@{model}": 1 / pace.token for model, pace in PACES.items()}
    return maker


def _said(call: Call, options: Options) -> Said:
    taken = {model: call.prompt * pace.prompt + call.tokens * pace.token for model, pace in PACES.items()}
    best = min(taken.values())
    return Said(
        at=call.at,
        seconds=best,
        share=WHOLE if options.requests == 1 else max(1, SHARED_CAP // options.requests),
        kind=KIND,
        rates={model: best / seconds for model, seconds in taken.items()} if best else {},
    )
