"""The rules of the Trace Event Format, for tests of what is exported."""

from collections.abc import Iterable
from typing import Any


def check_trace(events: Iterable[dict[str, Any]]) -> None:
    """The rules of the format that both viewers rely on: fields by kind, times, and slices of a thread that nest."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    named, flows = set(), {}
    for event in events:
        assert event["ph"] in "MXCsf" and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        thread = event["pid"], event["tid"]
        if event["ph"] == "M":
            named.add((event["name"], thread))
            assert event["args"]["name"]
            continue
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["name"] and event["dur"] >= 0 and ("thread_name", thread) in named
            threads.setdefault(thread, []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
        elif event["ph"] == "s":
            flows[event["id"]] = (event["ts"], thread)
        else:
            assert flows[event["id"]][0] <= event["ts"] and event["bp"] == "e"
            assert any(begin <= event["ts"] <= end for begin, end in threads[thread])
    for spans in threads.values():
        for (_, end), (begin, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
            assert end <= begin + 1e-3, "slices of a thread nest or follow each other"
