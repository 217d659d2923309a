"""A small portion of `make fuzz`, and every input that once failed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from many import many

from fuzz.mutate import Kind, Request, minimised
from fuzz.target import LIVE, Target, chance_of, check_file, file_input, judged, target

FOUND = sorted((Path(__file__).parent / "found").iterdir())
FILES = [path for path in FOUND if path.name.startswith("files-")]
REQUESTS = [path for path in FOUND if not path.name.startswith("files-")]
SEED = 0


@pytest.fixture(scope="module")
def control() -> Iterator[Target]:
    with target() as made:
        yield made
        assert not made.complaint()


def test_mutated_files_are_compiled_or_refused() -> None:
    wrong = {number: check_file(*file_input(SEED, number)) for number in range(many(120, 300))}
    assert not {number: text for number, text in wrong.items() if text}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_that_once_failed(path: Path) -> None:
    kind: Kind = path.name.split("-")[1]  # type: ignore[assignment]
    assert not check_file(kind, path.read_bytes())


def test_mutated_requests_are_answered(control: Target) -> None:
    async def send() -> None:
        async with control.node():
            for part in LIVE:
                found = await asyncio.gather(
                    *(control.check(part, chance_of(SEED, part, number)) for number in range(many(40, 80)))
                )
                assert not any(found), [(part, number, text) for number, text in enumerate(found) if text]

    asyncio.run(send())
    assert not control.complaint()


def test_requests_that_once_failed(control: Target) -> None:
    async def send() -> None:
        for path in REQUESTS:
            data = path.read_bytes().replace(b"TOKEN", control.token.encode())
            wrong = await control.check_request(Request(data, False, data.split(b" ")[0].decode("latin-1")))
            assert not wrong, (path.name, wrong)

    asyncio.run(send())
    assert not control.complaint()


def test_the_same_seed_makes_the_same_input() -> None:
    assert file_input(5, 7) == file_input(5, 7) != file_input(6, 7)


def test_what_is_wrong_with_an_answer_is_told() -> None:
    error = b'{"error": {"code": "E102", "message": "no"}}'
    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n\r\n"
    assert judged(head % b"200 OK") == judged(head % b"422 No" + error) == ""
    assert "500" in judged(head % b"500 Oh" + error)
    assert "without an error" in judged(head % b"404 No" + b"{}")
    assert "without an error" in judged(b"HTTP/1.1 404 No\r\nContent-Type: text/html\r\n\r\n<html>")
    assert "no HTTP" in judged(b"hello\r\n\r\n")


def test_what_failed_is_made_smaller() -> None:
    assert minimised(b"aaaaXaaaabbbYbbb", lambda data: b"X" in data and b"Y" in data) == b"XY"
