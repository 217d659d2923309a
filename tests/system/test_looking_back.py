"""What the dashboard shows of the past, in a real headless Chromium: it is what the commands print."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traceevents import check_trace

from system.living import until
from system.watching import Seen, link, watched

AXE = Path(__file__).resolve().parent.parent / "axe" / "axe.min.js"


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with watched() as found:
        yield found


def asked(seen: Seen, name: str, **given: Any) -> Any:
    """What a data function answers to the page."""
    query = "&".join(f"{key}={value}" for key, value in given.items())
    return seen.browser.evaluate(f"fetch('/data/{name}?{query}').then((answer) => answer.json())")


def press(seen: Seen, text: str) -> None:
    """Press the button with this text or name."""
    found = f"[...document.querySelectorAll('button')].find((one) => one.textContent === {json.dumps(text)} "
    found += f"|| one.getAttribute('aria-label') === {json.dumps(text)})"
    seen.wait(f"Boolean({found})")
    seen.browser.evaluate(f"{found}.click()")


def moment(seen: Seen) -> float:
    """A time at which nothing happens: the base is there, and no event is at its second."""
    last = -1
    while last != (last := seen.client.status().revision):
        time.sleep(1.1)
    return float(int(time.time()))


def test_the_timeline_shows_the_attempts_that_the_command_prints(seen: Seen) -> None:
    told = seen.living.poise("timeline", "--json", "--since", "1h").value
    wanted = {
        (f"{row['node'] or 'queue'} {row['name']}", one["task"], one["phase"])
        for row in told["rows"]
        for one in row["slices"]
        if one["until"] >= told["length"]  # it goes on
    }
    assert {phase for _, _, phase in wanted} == {"running", "waiting"}
    seen.go("/timeline")
    seen.wait("document.querySelectorAll('tbody tr').length > 5")
    rows = seen.rows("Attempts in the picture")
    assert wanted <= {(row[0], row[1], row[3]) for row in rows}
    ended = {row[4] for row in rows} - {"-"}
    assert "failed" in ended
    colours = (
        "(() => { const c = document.querySelector('canvas'); "
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; "
        "return new Set(Array.from({length: d.length / 4}, (_, i) => d.slice(4 * i, 4 * i + 3).join())).size; })()"
    )
    assert seen.browser.evaluate(colours) > 8, "the picture is drawn"


def test_the_timeline_zooms_moves_and_shows_one_job(seen: Seen) -> None:
    about = "document.querySelector('canvas').getAttribute('aria-label')"
    seen.go("/timeline")
    seen.wait(f"{about}.includes('bars from')")
    press(seen, "Earlier")
    before = seen.browser.evaluate(about)
    press(seen, "Zoom out")
    seen.wait(f"{about} !== {json.dumps(before)}")
    seen.browser.evaluate(
        "(() => { const field = document.querySelector('input[type=search]'); field.value = 'train'; "
        "field.dispatchEvent(new Event('input')); })()"
    )
    press(seen, "Later")
    train = seen.client.job("train").id
    seen.wait(f"{about}.startsWith('2 rows') || {about}.startsWith('3 rows')")  # its devices, and its wait
    assert {row[1] for row in seen.rows("Attempts in the picture")} <= {f"{train}.main"}


def test_the_export_is_a_trace_that_viewers_open(seen: Seen) -> None:
    told = asked(seen, "trace", since=time.time() - 3600, until=time.time())
    check_trace(told["traceEvents"])
    names = {event["name"] for event in told["traceEvents"] if event["ph"] == "X"}
    assert {f"{job.id}.main" for job in seen.client.jobs() if job.name in ("train", "says", "next")} <= names


def test_decisions_are_those_of_the_command(seen: Seen) -> None:
    told = seen.living.poise("decisions", "--json", "--limit", "200").value
    seen.go("/decisions")
    count = sum(len(one["made"]) for one in told)
    seen.wait(f"document.querySelectorAll('tbody tr').length === {count}")
    rows = seen.rows("Decisions by round")
    wanted = [(one, made) for one in reversed(told) for made in one["made"]]
    for row, (one, made) in zip(rows, wanted, strict=True):
        assert row[0] == str(one["revision"])
        assert row[4] == made["what"]
        assert row[5] == ", ".join(made["of"])
        assert row[6] == (", ".join(made.get("where", ())) or "-")
        assert row[8] == made["why"]
        assert all(node in row[7] for node in made.get("instead_of", ()))


def test_a_past_moment_is_shown_on_each_page_and_the_present_comes_back(seen: Seen) -> None:
    at = moment(seen)
    revision = seen.client.status().revision
    job = seen.living.poise("submit", "--name", "later", "--cpu", "0.1", "--", "sleep", "1000").text.strip()
    seen.go(f"/jobs?at={at}")
    seen.wait(f"document.getElementById('past').textContent.includes('revision {revision}.')")
    told = seen.living.poise("ls", "--all", "--json", "--at", str(revision)).value
    seen.wait(f"document.querySelectorAll('tbody tr').length === {len(told)}")
    shown = {row[0] for row in seen.rows("Unfinished jobs")}
    assert shown == {one["id"] for one in told} and job not in shown
    seen.browser.evaluate("document.querySelector('nav a[href=\"/now\"]').click()")
    seen.wait("document.querySelector('h1').textContent === 'Now'")
    assert seen.browser.evaluate("location.search") == f"?at={int(at)}"
    held = sum(len(one["devices"]) for one in seen.living.poise("nodes", "--json", "--at", str(revision)).value)
    assert seen.figure("devices") == f"4/{held}"
    assert seen.figure("starts") == "-", "rates are not in the log"
    train = seen.client.job("train").id
    seen.browser.evaluate(f"history.pushState(null, '', '/jobs/{train}?at={at}'), dispatchEvent(new Event('popstate'))")
    seen.wait("document.querySelectorAll('tbody tr').length === 1")
    (was,) = seen.living.poise("show", train, "--json", "--at", str(revision)).value["tasks"]
    assert seen.rows("Tasks")[0][1].endswith(was["status"])
    press(seen, "Back to now")
    seen.wait("document.getElementById('past').hidden")
    assert seen.browser.evaluate("location.search") == ""
    seen.go("/jobs")
    seen.wait(f"Boolean(document.querySelector('tr[data-key={job}]'))")
    assert seen.living.poise("cancel", job).code == 0


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_there_is_no_barrier_on_a_narrow_page_of_the_past(seen: Seen, theme: str) -> None:
    at = moment(seen)
    seen.browser.call("Emulation.setDeviceMetricsOverride", width=360, height=900, deviceScaleFactor=1, mobile=False)
    try:
        seen.go(f"/timeline?at={at}")
        seen.wait("document.getElementById('past').textContent.includes('poise ls --at')")
        seen.wait("document.querySelectorAll('tbody tr').length > 5")
        seen.browser.evaluate(f"document.documentElement.dataset.theme = {json.dumps(theme)}")
        seen.browser.evaluate(AXE.read_text())
        found = "axe.run(document).then(({violations}) => violations.map(({id, nodes}) => [id, nodes[0].html]))"
        assert seen.browser.evaluate(found) == []
        assert seen.browser.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        seen.browser.call("Emulation.clearDeviceMetricsOverride")


def test_the_slider_leads_from_the_first_record_to_now(seen: Seen) -> None:
    seen.go("/now")
    press(seen, "Past")
    seen.wait("document.getElementById('past').textContent.includes('Move the slider')")
    seen.browser.evaluate(
        "(() => { const slider = document.getElementById('moment'); slider.value = 0; "
        "slider.dispatchEvent(new Event('input')); })()"
    )
    seen.wait("document.getElementById('past').textContent.includes('poise ls --at')")
    seen.wait("document.querySelector('[data-figure=unfinished]').textContent === '0'")
    press(seen, "Back to now")
    seen.wait("document.querySelector('[data-figure=unfinished]').textContent !== '0'")


@pytest.mark.parametrize("at", ["1", "x", "-5", "1e400"])
def test_a_bookmark_of_a_moment_that_is_not_there_shows_the_present(seen: Seen, at: str) -> None:
    seen.go(f"/jobs?at={at}")
    seen.wait("document.querySelectorAll('tbody tr').length > 3")
    if at == "1":
        assert "nothing was recorded" in seen.text()


def test_a_what_if_scenario_is_that_of_the_command(seen: Seen) -> None:
    seen.go("/what-if")
    seen.wait("document.querySelectorAll('select[name=without] option').length === 3")
    seen.browser.evaluate("document.querySelector('select[name=without]').value = 'slow'")
    press(seen, "Compare")
    seen.wait("document.querySelectorAll('tbody tr').length > 0")
    told = seen.living.poise("what-if", "--without", "slow", "--futures", "4", "--json").value
    assert {row[0] for row in seen.rows("Both futures")} == {one["figure"] for one in told["figures"]}
    assert "If: without slow" in seen.text()
    assert "poise what-if --without slow" in seen.text()
    assert seen.client.job("says").status == "running", "nothing was changed"


def test_what_cannot_be_simulated_is_said(seen: Seen) -> None:
    assert asked(seen, "what-if", without="nowhere")["error"]["message"]
    assert "no such policy" in asked(seen, "what-if", policy="./mine.py")["error"]["message"]
    assert "not a number" in asked(seen, "timeline", since="soon")["error"]["message"]
    assert "still to come" in asked(seen, "state", at=time.time() + 1000)["error"]["message"]


def test_a_tenant_sees_nothing_of_others_in_the_past_either(seen: Seen) -> None:
    added = seen.living.poise("token", "add", "--tenant", "ann", "--role", "submitter", "--json").value
    theirs = {"POISE_TOKEN": added["secret"]}
    job = seen.living.poise("submit", "--name", "anns", "--gpu", "2", "--", "true", **theirs).text.strip()
    until(lambda: seen.living.poise("decisions", "--json", job).value, "its wait is recorded")
    seen.browser.call("Page.navigate", url="about:blank")
    seen.browser.wait()
    seen.browser.call("Page.navigate", url=link(seen.living, **theirs)["link"])
    seen.browser.wait()
    seen.wait("document.getElementById('who').textContent.includes('submitter of ann')")
    bars = asked(seen, "timeline", since=time.time() - 3600)
    assert set(bars["texts"]) & {f"{job}.main", "running"} == {f"{job}.main", "running"}
    assert not [text for text in bars["texts"] if text.startswith("j") and not text.startswith(f"{job}.")]
    assert (bars["levels"], bars["names"]) == ([], {job: "anns"})
    assert {name for one in asked(seen, "decisions") for made in one["made"] for name in made["of"]} == {f"{job}.main"}
    state = asked(seen, "state", at=time.time() - 0.1)
    assert set(state["jobs"]) <= {job}
    assert {device[2] for node in state["nodes"].values() for device in node["devices"]} == {"work of another tenant"}
    assert "train" not in json.dumps(state)
    assert asked(seen, "past-job", job="train", at=time.time() - 0.1)["error"]["code"] == "E120"
    assert asked(seen, "what-if", without="slow")["error"]["need"] == "an operator's token"
    assert asked(seen, "trace", since=time.time() - 3600)["traceEvents"]
    assert seen.living.poise("token", "rm", added["id"]).code == 0
    until(lambda: "error" in asked(seen, "timeline"), "nothing more is told")


def test_no_page_has_written_an_error_to_the_console(seen: Seen) -> None:
    refused = [error for error in seen.browser.errors if "Failed to load resource" not in error]
    assert refused == [], "but for what was refused on purpose"
