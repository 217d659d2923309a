"""HTTP as the client speaks it: what it sends, and what it makes of whatever comes back."""

import socket
from collections.abc import Iterator

import pytest

from poise.drivers.http import MAX_HEADERS, MAX_LINE, Answer, Connection

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Other:
    """The other end of a connection: it has answered before it is asked."""

    def __init__(self) -> None:
        ours, self.sock = socket.socketpair()
        ours.settimeout(10)
        self.connection = Connection(ours)

    def answers(self, *parts: bytes, then_leaves: bool = True) -> Answer:
        """What the client takes these bytes for."""
        self.sock.sendall(b"".join(parts))
        if then_leaves:
            self.sock.shutdown(socket.SHUT_WR)
        return self.connection.ask("GET", "/", {})


@pytest.fixture
def other() -> Iterator[Other]:
    end = Other()
    with end.connection, end.sock:
        yield end


def test_a_question_is_one_piece_with_its_length(other: Other) -> None:
    other.sock.sendall(OK + b"Content-Length: 0\r\n\r\n")
    other.connection.ask("POST", "/v1/jobs", {"Authorization": "Bearer x"}, b"{}")
    assert other.sock.recv(65536) == (
        b"POST /v1/jobs HTTP/1.1\r\nHost: poise\r\nAuthorization: Bearer x\r\nContent-Length: 2\r\n\r\n{}"
    )


@pytest.mark.parametrize("header", ["x\r\nAccept: y", "x\ny", "x\0"])
def test_a_header_cannot_bring_another_one(other: Other, header: str) -> None:
    with pytest.raises(ValueError, match="header"):
        other.connection.ask("GET", "/", {"Authorization": header})


def test_questions_follow_each_other_over_one_connection(other: Other) -> None:
    first = other.answers(OK, b"Content-Length: 3\r\n\r\none", then_leaves=False)
    assert (first.status, first.read(), first.is_last) == (200, b"one", False)
    second = other.answers(b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n")
    assert (second.status, second.read(), second.is_last) == (404, b"two", False)


@pytest.mark.parametrize(
    "said",
    [
        OK + b"connection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"\r\nok",
    ],
)
def test_after_the_last_answer_a_connection_is_not_used_again(other: Other, said: bytes) -> None:
    answer = other.answers(said)
    assert (answer.read(), answer.is_last) == (b"ok", True)


def test_an_answer_without_content_is_followed_by_the_next(other: Other) -> None:
    assert other.answers(b"HTTP/1.1 204 No Content\r\n\r\n", then_leaves=False).read() == b""
    assert other.answers(b"HTTP/1.1 100 Continue\r\n\r\n", OK, b"Content-Length: 2\r\n\r\nok").read() == b"ok"


def test_headers_go_by_their_names_in_lower_case(other: Other) -> None:
    answer = other.answers(OK, b"Poise-Standby-For:  h:1#f \r\nContent-Length: 0\r\n\r\n")
    assert answer.headers["poise-standby-for"] == "h:1#f"


def test_lines_are_whole_however_they_are_cut_into_chunks(other: Other) -> None:
    answer = other.answers(
        CHUNKED, b"4\r\na\nb\n\r\n", b"2;x=y\r\n\nc\r\n", b"A\r\nc\r\nd\nlast!\r\n", b"0\r\nT: x\r\n\r\n"
    )
    assert list(answer) == [b"a\n", b"b\n", b"\n", b"cc\r\n", b"d\n", b"last!"]


def test_a_line_is_there_before_the_next_one_has_come(other: Other) -> None:
    lines = iter(other.answers(CHUNKED, b"2\r\na\n\r\n", then_leaves=False))
    assert next(lines) == b"a\n"
    other.sock.sendall(b"2\r\nb\n\r\n")
    assert next(lines) == b"b\n"


def test_silence_is_told_from_an_end(other: Other) -> None:
    lines = iter(other.answers(CHUNKED, b"2\r\na\n\r\n", then_leaves=False))
    assert next(lines) == b"a\n"
    other.connection.sock.settimeout(0.01)
    with pytest.raises(TimeoutError):
        next(lines)


@pytest.mark.parametrize(
    "cut", [b"", b"6\r\n", b"6\r\nhal", b"6\r\nhalf a", b"6\r\nhalf a\r\n", b"6\r\nhalf a\r\n0\r\n"]
)
def test_lines_that_are_cut_off_are_not_taken_for_all(other: Other, cut: bytes) -> None:
    lines = iter(other.answers(CHUNKED, b"6\r\nwhole\n\r\n", cut))
    assert next(lines) == b"whole\n"
    with pytest.raises(ConnectionError):
        next(lines)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5",
        OK + b"Content-Length: 5\r\n\r\nfour",
        OK + b"Content-Length: -1\r\n\r\nx",
        OK + b"Content-Length: 1_0\r\n\r\n0123456789",
        OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nx",
        CHUNKED + b"-1\r\nx\r\n0\r\n\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"zz\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 " + b"x" * 2 * MAX_LINE + b"\r\n\r\n",
        OK + b"a: b\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    ],
)
def test_what_is_no_whole_answer_is_an_error_of_the_connection(other: Other, said: bytes) -> None:
    with pytest.raises(ConnectionError):
        other.answers(said).read()
