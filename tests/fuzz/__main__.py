"""`make fuzz`: 100,000 inputs from one seed, against the compilers of files and a real control plane.

    python -m fuzz [--seed N] [--count N] [--part PART] [--only NUMBER]

Prints one JSON object on stdout; ends with 1 if anything failed. Inputs go out several at a time, so that what meets
what is not the same every time; each input alone is. Failures are made smaller where one request is enough to fail, and
kept in `tests/fuzz/found`, which the tests try again forever.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import time
from collections import Counter, deque
from hashlib import sha256
from pathlib import Path
from typing import Any

from fuzz.mutate import Request, body_request, minimised, raw_request
from fuzz.target import LIVE, PARTS, Target, chance_of, check_file, file_input, target

SHARES = {"files": 0.45, "bodies": 0.3, "heads": 0.2, "frames": 0.05}
FOUND = Path(__file__).parent / "found"
AT_ONCE = 16
SWEEP_EVERY = 500
SAMPLES = 200
WARM = 0.4
"""The share of the inputs after which memory must be flat: until then caches, pools and the history fill."""

LONG = 20_000
"""Inputs after which the slope of memory says something."""

MAX_SLOPE = 256.0
"""Bytes for each input by which resident memory may grow, in a linear fit after the warm-up."""


def slope(samples: list[tuple[int, int]]) -> float:
    """Bytes per input: least squares over the samples after the warm-up."""
    settled = samples[int(len(samples) * WARM) :]
    if len(settled) < 2:
        return 0.0
    mean_x = sum(x for x, _ in settled) / len(settled)
    mean_y = sum(y for _, y in settled) / len(settled)
    spread = sum((x - mean_x) ** 2 for x, _ in settled)
    return sum((x - mean_x) * (y - mean_y) for x, y in settled) / spread if spread else 0.0


def fuzz_files(seed: int, numbers: range) -> list[dict[str, Any]]:
    failures = []
    for number in numbers:
        kind, data = file_input(seed, number)
        wrong = check_file(kind, data)
        if wrong:
            word = wrong.split(":")[0]
            less = minimised(data, lambda less, kind=kind, word=word: check_file(kind, less).startswith(word))  # type: ignore[misc]
            failures.append(_kept("files", number, check_file(kind, less) or wrong, less, kind))
    return failures


async def fuzz_live(
    target: Target, seed: int, order: list[tuple[str, int]]
) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
    failures: list[dict[str, Any]] = []
    samples: list[tuple[int, int]] = []
    waiting = iter(order)
    latest: deque[tuple[str, int]] = deque(maxlen=3 * AT_ONCE)
    done = 0

    async def send() -> None:
        nonlocal done
        for part, number in waiting:
            latest.append((part, number))
            if target.process.poll() is not None:
                return
            try:
                wrong = await target.check(part, chance_of(seed, part, number))
            except OSError as error:  # nobody listens
                wrong = f"{error}, after {list(latest)}"
            if wrong:
                data = b""
                if part != "frames" and target.process.poll() is None:
                    request = (body_request if part == "bodies" else raw_request)(
                        chance_of(seed, part, number), target.token
                    )
                    data = await _smaller(target, request, wrong)
                failures.append(_kept(part, number, wrong, data.replace(target.token.encode(), b"TOKEN")))
            done += 1
            if done % max(1, len(order) // SAMPLES) == 0 and target.process.poll() is None:
                samples.append((done, target.resident()))
            if done % SWEEP_EVERY == 0:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    await target.sweep()

    stop = asyncio.Event()
    slow = [asyncio.create_task(target.drip(stop)) for _ in range(4)]
    async with target.node():
        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
        stop.set()
        await asyncio.gather(*slow)
    return failures, samples


async def _smaller(target: Target, request: Request, wrong: str) -> bytes:
    """Less of a request that is answered as wrongly."""
    data = request.data
    size = len(data) // 2
    word = wrong.split(":")[0]
    while size > 8:
        start = 0
        while start < len(data):
            less = data[:start] + data[start + size :]
            found = await target.check_request(Request(less, False, request.method))
            if found.startswith(word):
                data = less
            else:
                start += size
        size //= 2
    return data


def _kept(part: str, number: int, wrong: str, data: bytes, kind: str = "") -> dict[str, Any]:
    name = f"{part}{'-' + kind if kind else ''}-{sha256(data).hexdigest()[:8]}"
    if data:
        FOUND.mkdir(exist_ok=True)
        (FOUND / name).write_bytes(data)
    return {"part": part, "number": number, "wrong": wrong[:2000], "kept": name if data else ""}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--only", type=int, help="this one input of `--part`")
    options = parser.parse_args()
    counts = {part: int(options.count * SHARES[part]) for part in PARTS if options.part in (None, part)}
    if options.part:
        counts = {options.part: options.count}
    numbers = {
        part: range(count) if options.only is None else range(options.only, options.only + 1)
        for part, count in counts.items()
    }
    sys.stderr.write(f"seed {options.seed}: {counts}\n")
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # that a slow client is hung up on is no news
    began = time.monotonic()
    failures = fuzz_files(options.seed, numbers.get("files", range(0)))
    order = [(part, number) for part in LIVE for number in numbers.get(part, ())]
    chance_of(options.seed, "order", 0).shuffle(order)
    figures: dict[str, Any] = {
        "seed": options.seed,
        "inputs": {part: len(part_numbers) for part, part_numbers in numbers.items()},
    }
    if order:
        with target() as control:
            before = control.descriptors()
            more, samples = asyncio.run(fuzz_live(control, options.seed, order))
            failures += more
            time.sleep(1.0)  # connections that were left are closed
            complaint = control.complaint()
            growth = slope(samples)
            figures |= {
                "resident_mib": [round(size / 2**20, 1) for _, size in samples[:: max(1, len(samples) // 10)]],
                "bytes_per_input": round(growth, 1),
                "descriptors": [before, control.descriptors()] if control.process.poll() is None else [],
            }
            if complaint:
                failures.append({"part": "log", "wrong": complaint})
            if len(order) >= LONG and growth > MAX_SLOPE:
                failures.append({"part": "memory", "wrong": f"it grows by {growth:.0f} bytes for each input"})
            if max(figures["descriptors"], default=0) > before + 4:
                failures.append({"part": "descriptors", "wrong": "connections are not closed"})
    figures["seconds"] = round(time.monotonic() - began, 1)
    figures["failed"] = dict(Counter(failure["part"] for failure in failures))
    figures["failures"] = failures[:20]
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
