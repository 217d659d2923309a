"""Makes bad input from good input. Everything follows from a `random.Random`: the same seed makes the same bytes."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import yaml

from poise.drivers.yamlfile import parse_yaml

Kind = Literal["job", "fleet", "policy"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

WORDS = (
    "",
    "a",
    "b",
    "x" * 300,
    "é",
    "💥",
    "\u202e",
    "\0",
    "\ud800",
    "a.b",
    "a[0]",
    "../..",
    "%s",
    "{}",
    "*",
    "~",
    "j1",
)
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 0.5, -0.0, 1e308, 5e-324, float("nan"), float("inf"), 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30,
)  # fmt: skip
QUANTITIES = (
    "1", "-1", "1e9", "nan", "inf", "1GiB", "99999999999999TiB", "1m", "0s", "1h30m", "1d1d1d", "500m", "10%", "auto",
    "2..8", "8..2", "..", "1e999999", "0x10", "\uff11", "+5", "1_000", "1 TFLOP", "10Gbit", "2050-01-01T00:00:00Z",
    "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59",
)  # fmt: skip
FIELDS = (
    "run", "name", "kind", "tasks", "needs", "resources", "env", "priority", "deadline", "expect", "workers", "parts",
    "split", "merge", "retry", "after", "artifacts", "work", "checkpoint", "class", "folder", "weight", "nodes",
    "devices", "links", "count", "model", "throughputs", "extends", "order", "score", "preempt", "triggers",
)  # fmt: skip

JOBS: tuple[dict[str, Any], ...] = (
    {"run": "true"},
    {"run": ["true"], "workers": "1..2", "checkpoint": {"every": "5s", "restore": "1s"}, "resources": {"cpu": "10m"}},
    {
        "kind": "graph",
        "env": {"A": "b"},
        "tasks": {
            "a": {"run": ["true"], "resources": {"cpu": "100m", "memory": "1MiB"}, "retry": {"limit": 0}},
            "b": {"run": "true", "needs": ["a"], "priority": "high", "deadline": "30m", "parts": 2, "merge": "true"},
        },
    },
)


def corpus() -> list[tuple[Kind, Any]]:
    """Documents that are good, with what each of them is."""
    found: list[tuple[Kind, Any]] = [("job", job) for job in JOBS]
    for path in sorted(EXAMPLES.glob("*.yaml")):
        kind: Kind = "fleet" if path.stem == "fleet" else "policy" if path.stem == "policy" else "job"
        found.append((kind, parse_yaml(path.read_text(), path.name)))
    return found


CORPUS = corpus()


# --- values ----------------------------------------------------------------------------------------------------------


def odd_value(chance: random.Random, levels: int = 2) -> Any:
    """A value that is wrong nearly everywhere, or right where nobody thinks of it."""
    pick = chance.randrange(9 if levels else 7)
    if pick == 0:
        return chance.choice(WORDS)
    if pick in (1, 2):
        return chance.choice(NUMBERS)
    if pick in (3, 4):
        return chance.choice(QUANTITIES)
    if pick == 5:
        return chance.choice((None, True, False, [], {}, [[]], [None], {"": ""}, {"a": {"a": {}}}))
    if pick == 6:
        return nested(chance.choice((3, 20, 40, 400)), chance.choice(("list", "map")))
    if pick == 7:
        return [odd_value(chance, levels - 1) for _ in range(chance.choice((1, 2, 30)))]
    return {chance.choice(WORDS + FIELDS): odd_value(chance, levels - 1) for _ in range(chance.choice((1, 2, 5)))}


def nested(depth: int, form: str) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if form == "list" else {"a": value}
    return value


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every container in a document with each key or index in it."""
    found = []
    waiting = [document]
    while waiting:
        inner = waiting.pop()
        entries = list(inner.items()) if isinstance(inner, dict) else list(enumerate(inner))
        for key, value in entries:
            found.append((inner, key))
            if isinstance(value, dict | list) and value:
                waiting.append(value)
    return found


def mutated_document(chance: random.Random, document: Any) -> Any:
    """A copy with one or more values, keys or branches changed."""
    document = copied(document)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 9))):
        there = places(document)
        if not there:
            return odd_value(chance)
        inner, key = chance.choice(there)
        pick = chance.randrange(8)
        if pick <= 2:
            inner[key] = odd_value(chance)
        elif pick == 3:
            del inner[key]
        elif pick == 4:
            other, name = chance.choice(there)
            held = other.get(name) if isinstance(other, dict) else other[name] if name < len(other) else None
            inner[key] = copied(held)
        elif pick == 5 and isinstance(inner, dict):
            inner[chance.choice(FIELDS + WORDS)] = inner.pop(key)
        elif pick == 6 and isinstance(inner, dict):
            inner[chance.choice(FIELDS + WORDS)] = odd_value(chance)
        elif pick == 7 and isinstance(inner, list):
            inner.extend([inner[key]] * chance.choice((1, 3, 200)))
        if sum(1 for _ in places(document)) > 20_000:  # branches put into themselves grow fast
            return odd_value(chance)
    if chance.randrange(50) == 0:
        return odd_value(chance)
    return document


def copied(value: Any) -> Any:
    """Deep; what is nested too deep for that is as good cut off."""
    return json.loads(dumped(value)) if isinstance(value, dict | list) else value


def dumped(document: Any, *, ascii_only: bool = True) -> bytes:
    """As JSON; what is nested too deep for that is a text that is nested too deep."""
    try:
        return json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"[" * 900 + b"]" * 900


# --- texts -----------------------------------------------------------------------------------------------------------

YAML_PIECES = (
    "&a [*a]", "*a", "&a", "!!python/object/apply:os.system ['true']", "!!binary x", "!!set {a, b}", "!x y", "<<: *a",
    "? [a]\n: b\n", "---\n", "...\n", "%YAML 9.9\n", "\t", "- ", ": ", "|\n", ">-\n", "'", '"', "{", "[", "}", "]", "#",
    "run: true\n", "run: 1\nrun: 2\n", "yes", "0o7", "12:30:45", "2001-01-01", ".nan", "-.inf", "9" * 400, "1e400",
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n",
    "[" * 60, "- " * 60, "\ufeff", "\u2028", "\x85", "\x07", "é", "💥",
)  # fmt: skip
JSON_PIECES = (
    b"null", b"-1", b"1e308", b"1e999", b"-0", b"99999999999999999999", b'"\\ud800"', b'"\\u0000"', b"{}", b"[]",
    b"true", b'"nan"', b"NaN", b"Infinity", b"[" * 3000, b"{" * 3000, b'"' + b"x" * 5000 + b'"', b'{"a":' * 600,
    b"\xff", b"\xed\xa0\x80", b"\x00", b"}", b",", b'"', b":", b"\xef\xbb\xbf", "💥".encode(), b'"spec":', b'"run":1,',
)  # fmt: skip


def spliced(chance: random.Random, data: bytes, pieces: tuple[bytes, ...]) -> bytes:
    """Some of it cut out, put twice, or replaced."""
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((0, 1, 2, 8, 40)))
        put = chance.choice((b"", data[start:end] * 2, chance.choice(pieces), bytes([chance.randrange(256)])))
        data = data[:start] + put + data[end:]
    return data


_YAML_PIECES = tuple(piece.encode() for piece in YAML_PIECES)


def file_text(chance: random.Random) -> tuple[Kind, bytes]:
    """The content of a file of some kind: a mutated document, mutated text, or both."""
    kind, document = chance.choice(CORPUS)
    if chance.randrange(4):
        document = mutated_document(chance, document)
    if chance.randrange(2):
        data = dumped(document, ascii_only=chance.randrange(2) == 0)
    else:
        try:
            data = yaml.safe_dump(document).encode("utf-8", "surrogatepass")
        except (RecursionError, yaml.YAMLError):
            data = dumped(document)
    if chance.randrange(3) == 0:
        data = spliced(chance, data, _YAML_PIECES)
    return kind, data


# --- requests --------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """Bytes for one connection. `whole`: it is one request as it should be framed, so there must be one answer."""

    data: bytes
    whole: bool
    method: str = "GET"


NAMES = (
    "j1",
    "j2",
    "fuzz",
    "nowhere",
    "%00",
    "%FF",
    "%2e%2e%2f",
    "..",
    "é",
    "%ED%A0%80",
    "a%2Fb",
    "%",
    "%zz",
    "x" * 900,
)
USERS = ("ann", "bob", "nobody", "")
QUERIES = (
    "", "?all=true", "?all=perhaps", "?wait=nan", "?wait=-1", "?wait=1e-9", "?after=-1", "?after=x", "?follow=false",
    "?follow=false&after=0", "?decisions=1&follow=false", "?if_revision=0", "?if_revision=999999999999999999999",
    "?if_revision=-1", "?%00=%00", "?a=b&a=c&a", "?&&&==", "?task=%ff&follow=false", "?" + "a=b&" * 500, "?;", "?all=",
    "?wait=1e999", "?all=true&all=false",
)  # fmt: skip


def body_request(chance: random.Random, token: str) -> Request:
    """A request with a right head and a mutated body."""
    pick = chance.randrange(10)
    kind = "application/json"
    method = "POST"
    query = chance.choice(QUERIES) if chance.randrange(4) == 0 else ""
    if pick <= 4:
        path, data = "/v1/jobs", submission(chance)
    elif pick <= 6:
        path, data = "/v1/plan", submission(chance)
    elif pick == 7:
        path, kind, query = "/v1/jobs", "application/x-ndjson", ""
        ends = (b"\n", b"\r\n", b"\n\n", b"")
        data = b"".join(submission(chance) + chance.choice(ends) for _ in range(chance.choice((0, 1, 5, 40))))
    elif pick == 8:
        method, path = "PUT", f"/v1/quotas/{chance.choice(USERS + NAMES)}"
        data = spliced(chance, dumped({"cpu": odd_value(chance), "gpu": 2, "memory": "1GiB"}), JSON_PIECES)
    else:
        path = f"/v1/nodes/{chance.choice(NAMES)}/drain"
        data = spliced(chance, b'{"on": true, "moves": true}', JSON_PIECES)
    kind = (
        kind
        if chance.randrange(12)
        else chance.choice(("", "text/plain", "application/msgpack", "multipart/form-data"))
    )
    return Request(head(method, path + query, token, {"Content-Type": kind}, data) + data, True, method)


def submission(chance: random.Random) -> bytes:
    """What a client may send to be run."""
    kind, document = chance.choice(CORPUS)
    while kind != "job" and chance.randrange(20):
        kind, document = chance.choice(CORPUS)
    if chance.randrange(3):
        document = mutated_document(chance, document)
    whole: dict[str, Any] = {"spec": document}
    if chance.randrange(3) == 0:
        whole["user"] = chance.choice(USERS)
    if chance.randrange(6) == 0:
        whole["key"] = chance.choice(("again", "x" * 128, "x" * 129, "é", 5, None))
    data = dumped(whole)
    return spliced(chance, data, JSON_PIECES) if chance.randrange(3) == 0 else data.replace(b"\n", b" ")


def head(method: str, path: str, token: str, more: dict[str, str], body: bytes | None = None) -> bytes:
    headers = {"Host": "poise", "Authorization": f"Bearer {token}", **more}
    if body is not None:
        headers.setdefault("Content-Length", str(len(body)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("utf-8", "surrogatepass")


METHODS = (
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "PROPFIND",
    "PRI",
    "X",
    "É",
)
PATHS = (
    "/", "/v1", "/v1/status", "/v1/jobs", "/v1/jobs/{}", "/v1/jobs/{}/cancel", "/v1/jobs/{}/logs",
    "/v1/jobs/{}/explanation", "/v1/jobs/{}/why-not/{}", "/v1/jobs/{}/unblock", "/v1/nodes", "/v1/nodes/{}/drain",
    "/v1/nodes/lost", "/v1/nodes/leave", "/v1/nodes/lend",
    "/v1/profiles?node={}", "/v1/quotas", "/v1/quotas/{}", "/v1/events?follow=false",
    "/v1/plan", "/v1/schema/openapi.json", "/v1/schema",
    "/healthz", "/v1/authority", "/v1/channel", "/v1/calls", "/v1/workers", "//v1//jobs", "/v1/jobs/", "/V1/JOBS", "*",
    "http://poise/v1/jobs", "v1/jobs", "/v1/jobs#f", "/v1/./jobs", "/v1/jobs;a=b",
    "/" + "a" * 9000, "/" + "a/" * 3000, "/\x7f", "/%", "/v1/jobs\\..",
)  # fmt: skip
HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Host",
        (
            "poise",
            "localhost:1",
            "127.0.0.1:99999",
            "[::1]",
            "[::1",
            "",
            "evil.example",
            "poise:",
            "a" * 5000,
            "p\u00f6ise",
        ),
    ),
    ("Origin", ("null", "http://poise", "https://evil.example", "//", "poise", "")),
    ("Authorization", ("", "Bearer", "Bearer ", "Basic x", "Bearer \u00e9", "bearer x", "Bearer " + "x" * 9000)),
    ("Content-Length", ("0", "-1", "5", "99999999999", "1e3", "+1", " 7", "0x5", "²", "", "9" * 400, "5, 6")),
    ("Transfer-Encoding", ("chunked", "identity", "gzip, chunked", "chunked, chunked", "\x0bchunked", "x")),
    (
        "Content-Type",
        ("application/json; charset=x", "application/x-ndjson", "\u00e9", "a" * 5000, "application/json;" * 300),
    ),
    ("Content-Encoding", ("gzip", "br", "x")),
    ("Accept", ("text/html", "application/xml", "*/*;q=nan", "a/b" * 2000, ";;;")),
    ("Last-Event-ID", ("-5", "²", "9" * 19, "9" * 400, "x")),
    ("Connection", ("close", "keep-alive", "upgrade", "Upgrade, close", "x")),
    ("Upgrade", ("websocket", "h2c", "x")),
    ("Sec-WebSocket-Key", ("AAAAAAAAAAAAAAAAAAAAAA==", "x", "")),
    ("Sec-WebSocket-Version", ("13", "8", "x")),
    ("Expect", ("100-continue", "x")),
    ("Range", ("bytes=0-0", "bytes=-1", "x")),
    ("Cookie", ("a=b; " * 500, "=", "\x01")),
    ("X-Forwarded-For", ("evil.example",)),
    ("X-HTTP-Method-Override", ("DELETE",)),
    ("Traceparent", ("00-" + "0" * 32 + "-" + "0" * 16 + "-00",)),
)
HEAD_PIECES = (
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"\r\n ", b"\xff", b"%",
    b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"X: " + b"x" * 70_000 + b"\r\n", b"a: b\r\n" * 500,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n",
)  # fmt: skip
CHUNKS = (
    b"0\r\n\r\n", b"5\r\n{\"a\":\r\n", b"ffffffffffffffff\r\nx", b"-1\r\n", b"zz\r\n", b"3;ext=\"x\"\r\nabc\r\n",
    b"2\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}", b"00000000000000000000002\r\n{}\r\n0\r\nTrailer: x\r\n\r\n", b"1\r\n", b"",
)  # fmt: skip


def raw_request(chance: random.Random, token: str) -> Request:
    """A request whose head is wrong: methods, paths, headers, framing."""
    method = chance.choice(METHODS) if chance.randrange(2) else "GET"
    path = chance.choice(PATHS)
    while "{}" in path:
        path = path.replace("{}", chance.choice(NAMES), 1)
    if chance.randrange(4) == 0:
        path += chance.choice(QUERIES)
    headers = {"Connection": "close"}
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        name, values = chance.choice(HEADERS)
        headers[name] = chance.choice(values)
    body = chance.choice((b"", b"{}", b'{"spec": {"run": "true"}}', b"\xff\x00", b"x" * 5000))
    framed = chance.randrange(3) and "Content-Length" not in headers and "Transfer-Encoding" not in headers
    data = head(method, path, token, headers, body if framed else None)
    whole = bool(framed) and data.isascii() and "\0" not in path and method not in ("get", "PRI", "X", "CONNECT")
    if headers.get("Transfer-Encoding"):
        body = b"".join(chance.choice(CHUNKS) for _ in range(chance.choice((1, 2, 6))))
    if chance.randrange(3) == 0:
        data, whole = spliced(chance, data, HEAD_PIECES), False
    if b"upgrade" in data.lower() or not path.startswith("/") or "\x7f" in path or len(data) > 30_000:
        whole = False
    if b"/shutdown" in data:  # it would do what it says
        data = data.replace(b"/shutdown", b"/healthz")
    return Request(data + body, whole, method)


# --- frames ----------------------------------------------------------------------------------------------------------

NODE = {"name": "fuzz", "incarnation": "1", "cpu": 4000, "memory": 2**33, "devices": [], "labels": {"declared": "yes"}}
FRAMES: dict[str, tuple[Any, ...]] = {
    "/v1/channel": (
        {"type": "hello", "node": NODE, "queued": [["j1.main", 1]], "running": [], "ended": []},
        {"type": "report", "serial": 1, "running": [{"attempt": ["j1.main", 1], "pid": 7, "cpus": [0]}],
         "ended": [{"attempt": ["j2.main", 1], "ending": {"outcome": "done", "code": 0, "run": 5}}]},
        {"type": "beat", "load": {"cpu": 5, "load1": 5, "memory": 5, "disk": 5, "network": 5}, "number": 1,
         "every": 2_000_000_000},
    ),
    "/v1/calls": (
        {"type": "resume", "job": "j1", "unreturned": [1, 2]},
        {"type": "call", "functions": [["f", "m", "", "", ["text", b"x"]]], "calls": [[1, 0, ["", b"x"], [], 0]]},
        {"type": "uncall", "numbers": [1]},
        {"type": "closing"},
    ),
    "/v1/workers": (
        {"type": "ready", "attempt": ["j1.main", 1], "functions": 0, "held": [1], "results": []},
        {"type": "return", "results": [[1, "returned", ["", b"x"], 5, ""]], "back": [2]},
    ),
}  # fmt: skip
FRAME_PIECES = (
    b"\xc1",
    b"\xff",
    b"\x00",
    b"\x91" * 2000,
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xa4type",
    b"\xc0",
    b"\xcb\x7f\xf8\0\0\0\0\0\0",
)


def frames(chance: random.Random, path: str) -> list[bytes]:
    """What one connection sends: the first frame is nearly always right, so that the others are listened to."""
    known, numbered = FRAMES[path], path == "/v1/channel"
    made = [msgspec.msgpack.encode((1, known[0]) if numbered else known[0])] if chance.randrange(8) else []
    for _ in range(chance.choice((1, 2, 6))):
        message = mutated_packed(chance, chance.choice(known))
        serial = len(made) + 1 if chance.randrange(16) else odd_value(chance)
        data = _packed([serial, message] if numbered else message)
        made.append(spliced(chance, data, FRAME_PIECES) if chance.randrange(4) == 0 else data)
    return made


def mutated_packed(chance: random.Random, message: Any) -> Any:
    """As `mutated_document`, of a frame: names of nodes stay few, for a node that was once seen is remembered."""
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    inner, key = chance.choice(places(message))
    if key not in ("name", "type"):
        inner[key] = odd_value(chance)
    return message


def _packed(value: Any) -> bytes:
    """Numbers that have no form in msgpack become texts, and so do lone surrogates."""

    def plain(inner: Any) -> Any:
        if isinstance(inner, dict):
            return {plain(key): plain(held) for key, held in inner.items()}
        if isinstance(inner, list | tuple):
            return [plain(held) for held in inner]
        if isinstance(inner, int) and not -(2**63) <= inner < 2**64:
            return str(inner)
        return inner.encode("utf-8", "replace").decode() if isinstance(inner, str) else inner

    return msgspec.msgpack.encode(plain(value))


# --- smaller ---------------------------------------------------------------------------------------------------------


def minimised(data: bytes, fails: Callable[[bytes], bool], tries: int = 400) -> bytes:
    """Less of it that still fails: pieces are taken out, large ones first."""
    size = max(1, len(data) // 2)
    while size and tries:
        start = 0
        while start < len(data) and tries:
            less = data[:start] + data[start + size :]
            tries -= 1
            if fails(less):
                data = less
            else:
                start += size
        size //= 2
    return data
