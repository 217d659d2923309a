"""The dashboard in a real headless Chromium, over a running Poise with real jobs: it shows what the API says."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from many import many

from poise.dashboard.recording import Recording
from poise.drivers.http import Connection
from poise.drivers.lock import holder
from poise.model.decisions import Reason
from poise.model.reports.jobs import TrainingReport
from poise.model.training import Saved, Training
from system.living import Living, alive, ended, kill, until
from system.watching import MARKUP, Seen, first_value, link, watched

AXE = Path(__file__).resolve().parent.parent / "axe" / "axe.min.js"
VIEWS = (
    *("/now", "/queue", "/jobs", "/nodes", "/services", "/training", "/timeline", "/decisions"),
    *("/incidents", "/rules", "/energy", "/what-if"),
)
TIMES = "\N{MULTIPLICATION SIGN}"


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with watched(works=True) as found:
        yield found


def press(seen: Seen, text: str) -> None:
    """Press the button with this text."""
    found = f"[...document.querySelectorAll('button')].find((one) => one.textContent === {json.dumps(text)})"
    seen.wait(f"Boolean({found})")
    seen.browser.evaluate(f"{found}.click()")


def test_the_link_leaves_the_address_and_is_good_once(seen: Seen) -> None:
    another = link(seen.living)
    assert another["url"] == seen.url
    seen.browser.call("Page.navigate", url="about:blank")
    seen.browser.wait()
    seen.browser.call("Page.navigate", url=another["link"])
    seen.browser.wait()
    seen.wait("document.querySelector('[data-figure=nodes_up]')?.textContent === '2'")
    assert seen.browser.evaluate("location.href") == seen.url
    assert seen.browser.evaluate("document.cookie") == ""


def test_now_shows_the_fleet_as_the_api_does(seen: Seen) -> None:
    seen.go("/now")
    told, nodes = seen.client.overview(), seen.client.nodes()
    seen.wait("document.querySelector('[data-figure=nodes_up]')?.textContent === '2'")
    assert seen.figure("nodes_lost") == str(told.nodes_lost)
    assert seen.figure("unfinished") == str(told.unfinished)
    assert seen.figure("devices") == "4/4"
    rows = {row[0]: row for row in seen.rows("Nodes and their use")}
    assert set(rows) == {node.name for node in nodes}
    for node in nodes:
        row = rows[node.name]
        assert row[1].endswith(node.status)
        assert row[2] == f"{node.cpu_used / 1000:g}/{node.cpu / 1000:g}"
        assert row[4] == f"{sum(bool(of.held_by) for of in node.devices)}/{len(node.devices)}"
        assert row[6] == str(node.running)
        assert {of.held_by.partition(".")[0] for of in node.devices} <= set(row[7].split())
    about = seen.browser.evaluate("document.querySelector('canvas').getAttribute('aria-label')")
    assert about.startswith("2 nodes, 4 of 4 devices held")
    drawn = (
        "(() => { const canvas = document.querySelector('canvas');"
        " const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);"
        " return new Set(new Uint32Array(data.buffer)).size; })()"
    )
    assert seen.browser.evaluate(drawn) > 3, "the picture is drawn"


def test_the_queue_shows_place_reasons_and_expected_start(seen: Seen) -> None:
    seen.go("/queue")
    (waits,) = seen.client.overview().waiting
    seen.wait("document.querySelectorAll('tbody tr').length === 1")
    (row,) = seen.rows("Units that wait")
    assert row[:5] == [waits.unit, "1", "next", waits.priority, waits.user]
    assert row[6] == waits.why
    text = seen.wait("document.querySelector('.start')?.textContent")
    (told,) = seen.client.explain("next").waiting
    assert told.start is not None
    assert (told.start.likely is None) == (not text.startswith("in "))
    shown = seen.browser.evaluate("[...document.querySelectorAll('.reasons li')].map((one) => one.textContent)")
    everything: tuple[Reason, ...] = told.reasons + tuple(of for one in told.refusing for of in one.reasons)
    assert set(shown) == {reason.sentence() for reason in everything}


def test_a_job_shows_its_tasks_path_and_output(seen: Seen) -> None:
    report = seen.client.job("report")
    seen.go(f"/jobs/{report.id}")
    seen.wait("document.querySelectorAll('tbody tr').length === 3")
    assert seen.figure("id") == report.id
    for status, count in report.counts.items():
        assert seen.figure(f"counts.{status}") == str(count)
    rows = {row[0]: row for row in seen.rows("Tasks")}
    for task in report.tasks:
        row = rows[task.name]
        assert row[1].endswith(task.status)
        assert row[3] == task.node
        assert row[6] == str(task.epoch)
        assert (row[10] == "critical") == task.critical
        assert task.why in row[12]
    path = seen.browser.evaluate("[...document.querySelectorAll('.path li')].map((one) => one.textContent)")
    assert tuple(path) == report.critical_path
    assert seen.wait("document.querySelector('pre')?.textContent.includes('counted')")
    seen.wait("[...document.querySelectorAll('h2')].some((one) => one.textContent === 'Why')")
    drawn = seen.browser.evaluate("[...document.querySelectorAll('svg.graph text')].map((one) => one.textContent)")
    assert [text.split()[1] for text in drawn] == [task.name for task in report.tasks]
    assert seen.browser.evaluate("document.querySelectorAll('svg.graph line.critical').length") == 2


def test_a_job_shows_what_its_devices_used_and_cost(seen: Seen) -> None:
    seen.go("/jobs/train")
    press(seen, "Compute energy and cost")
    seen.wait("document.querySelector('[data-figure=\"spent.price\"]')?.textContent.startsWith('$')")
    (told,) = seen.living.poise("report", "--json", "train").value["jobs"]
    assert 0 < float(seen.figure("spent.price")[1:]) <= told["price"] + 0.0001
    assert 0 < float(seen.figure("spent.energy").split()[0]) <= told["energy"] / 3.6e6 + 0.0001
    assert 0 <= float(seen.figure("spent.co2").split()[0]) <= told["co2"] + 0.001


def test_markup_is_shown_as_text(seen: Seen) -> None:
    seen.go("/jobs/says")
    seen.wait("document.querySelector('pre')?.textContent.length > 0")
    assert MARKUP in seen.browser.evaluate("document.querySelector('pre').textContent")
    assert "broken" not in seen.browser.evaluate("document.title")
    assert seen.browser.evaluate("document.querySelectorAll('main img, main script').length") == 0


def test_nodes_show_what_the_api_says(seen: Seen) -> None:
    seen.go("/nodes")
    seen.wait("document.querySelectorAll('tbody tr').length === 2")
    rows = {row[0]: row for row in seen.rows("Nodes, by name")}
    for node in seen.client.nodes():
        row = rows[node.name]
        assert row[2] == node.rack
        assert row[6] == node.devices[0].model
        assert row[10] == str(node.running)
    seen.browser.evaluate("document.querySelector('main a[href=\"/nodes/fast\"]').click()")
    seen.wait("document.querySelector('h1').textContent === 'fast'")
    devices = until(lambda: seen.rows("Devices"), "the devices are shown", seen.text)
    assert [row[2] for row in devices] == [of.held_by for of in seen.client.nodes()[0].devices]
    seen.wait("Boolean(document.querySelector('main button[aria-label^=Why]'))")
    seen.browser.evaluate(
        "[...document.querySelectorAll('main button')].find((one) => one.textContent === 'Ask').click()"
    )
    told = "; ".join(reason.sentence() for reason in seen.client.why_not("next", "fast").reasons)
    seen.wait(f"document.querySelector('main').textContent.includes({json.dumps(told)})")


def test_a_node_shows_the_scores_of_decisions_that_weighed_it(seen: Seen) -> None:
    told = seen.living.poise("decisions", "--json", "--limit", "50", "--node", "fast").value
    seen.go("/nodes/fast")
    caption = "Latest decisions for which"
    rows = until(lambda: seen.rows(caption), "the scores are shown", seen.text)
    wanted = [(one["revision"], made) for one in told[::-1] for made in one["made"]][:20]
    for row, (revision, made) in zip(rows, wanted, strict=True):
        assert (row[0], row[2]) == (str(revision), made["of"][0])
        assert row[3] == "yes" if made["where"][0].split("[")[0] == "fast" else row[3].startswith("no: ")
        assert float(row[4]) == pytest.approx(
            sum(made["score"].values()) if row[3] == "yes" else made["instead_of"]["fast"]
        )
        assert all(term in row[5] for term in made["score"]) or row[3] != "yes"


def test_services_show_what_the_gateway_reports(seen: Seen) -> None:
    assert seen.serving is not None
    seen.go("/services")
    for number in range(5):
        assert seen.serving.ask(number).value == 2 * number
    caption = "Services and versions"
    row = until(lambda: [row for row in seen.rows(caption) if int(row[8]) >= 5], "it is shown", seen.text)[0]
    (told,) = seen.living.poise("services", "--json").value
    assert row[:2] == [told["service"], f"{told['replicas']}/{told['started']}"] == ["app", "1/1"]
    assert (row[9], row[11], row[17]) == (str(told["failed"]), "0", told["url"])
    assert row[16].split(", ") == told["jobs"]
    assert row[6].endswith("ms") and float(row[14]) >= 1
    assert seen.figure("services") == "1"


def test_training_shows_what_sessions_say(seen: Seen) -> None:
    before = seen.client.job("learns").training[0]
    seen.go("/training")
    (row,) = until(lambda: seen.rows("Units that train"), "it is shown", seen.text)
    after = seen.client.job("learns").training[0]
    assert (row[0], row[1], row[3]) == (after.unit, "learns", "● running")
    assert before.said.step <= int(row[4]) <= after.said.step
    assert row[9] == f"{after.said.batch} {TIMES} {after.said.accumulation}" == f"16 {TIMES} 1"
    assert row[8] == str(after.said.world) == "1"
    assert row[7] in ("initial", "convergence", "fine-tuning")
    assert float(row[10]) > 0
    drawn = seen.wait("document.querySelector('svg.chart')?.getAttribute('aria-label')")
    assert drawn.startswith(f"Loss of {after.unit} by step: ")
    seen.go("/jobs/learns")
    seen.wait("Number(document.querySelector('[data-figure=step]')?.textContent) > 0")
    phases = until(lambda: seen.rows(f"Phases and batches of {after.unit}"), "they are shown", seen.text)
    assert phases[0][:1] == ["1"] and {one[4] for one in phases} == {f"16 {TIMES} 1"}
    seen.wait("document.querySelectorAll('svg.chart').length === 1")


def test_energy_and_cost_are_those_of_the_report(seen: Seen) -> None:
    seen.go("/energy")
    seen.wait("document.querySelector('[data-figure=powered]')?.textContent === '4/4'")
    told = seen.living.poise("report", "--since", "1h", "--json").value
    nodes = {row[0]: row for row in seen.rows("Nodes, those with")}
    assert list(nodes) == [one["node"] for one in told["nodes"]] == ["fast", "slow"]
    assert 0 < sum(float(row[4][1:]) for row in nodes.values()) <= told["bill"]["price"] + 0.001
    assert {row[0] for row in seen.rows("Jobs, those with")} == {one["id"] for one in told["jobs"]}
    assert [row[0] for row in seen.rows("Tenants")] == ["default"]
    assert {row[0] for row in seen.rows("Room that")} <= {one["cause"] for one in told["waste"]}
    assert "poise report --since=1h" in seen.text()
    assert "CO2e at 0.473 kg per kWh." in seen.text()
    seen.browser.evaluate(
        "(() => { const field = document.querySelector('input[type=number]'); field.value = '1'; "
        "field.dispatchEvent(new Event('change')); })()"
    )
    seen.wait("document.querySelector('main').textContent.includes('poise report --since=1h --co2=1')")
    assert float(seen.figure("co2").split()[0]) == pytest.approx(float(seen.figure("energy").split()[0]), abs=0.001)


def test_a_page_follows_what_happens_and_its_tab_opens_no_stream(seen: Seen) -> None:
    seen.go("/jobs")
    seen.wait("document.querySelectorAll('tbody tr').length >= 5")
    job = seen.living.poise("submit", "--name", "later", "--", "sleep", "1000").text.strip()
    seen.wait(f"document.querySelector('tr[data-key={job}]')?.textContent.includes('pending')")
    assert seen.living.poise("cancel", job).code == 0
    seen.wait(f"document.querySelector('tr[data-key={job}]')?.textContent.includes('cancelled')")
    opened = "performance.getEntriesByType('resource').map((one) => one.name).filter((one) => one.endsWith('/stream'))"
    assert seen.browser.evaluate(opened) == []


LARGE = """
(async () => {
  const { show } = await import("/views/now.js");
  const nodes = {};
  for (let at = 0; at < 10000; at += 1) {
    const name = `n${at}`;
    const devices = Array.from({ length: 8 }, (_, index) => [index, "H100", at % 4 ? "j1.main" : "", ""]);
    const rack = `r${at % 100}`;
    nodes[name] = { name, rack, status: "up", cpu: 64000, cpu_used: 0, memory: 1, memory_used: 0, devices };
  }
  const element = document.createElement("div");
  document.getElementById("main").replaceChildren(element);
  show(element, { head: {}, nodes, jobs: {}, waiting: {}, running: {} }, { rest: [], onLeave() {}, go() {} });
  const rows = () => [...element.querySelectorAll("tbody tr")].filter((row) => row.checkVisibility());
  const folded = [rows().length, rows()[0].textContent, element.querySelector("canvas").clientHeight > 0];
  rows()[0].querySelector("button").click();
  const few = element.querySelectorAll("tr").length < 400;
  return [...folded, rows().length, rows()[1].textContent.startsWith("n100"), few];
})()
"""


def test_a_large_fleet_is_folded_by_rack_and_a_rack_opens(seen: Seen) -> None:
    seen.go("/now")
    racks, first, drawn, nodes, in_order, few = seen.browser.evaluate(LARGE)
    assert (racks, drawn, nodes, in_order, few) == (100, True, 100, True, True)
    assert first == "r01000/8000/64000"


def test_a_job_that_trains_shows_what_it_says(seen: Seen) -> None:
    """As the API tells it, in a page of its own: such a job would take a minute."""
    saved = Saved(step=40, at=1_700_000_000.0)
    said = Training(step=42, loss=0.5, world=2, energy=3_600_000_000, checkpoint=saved, resizes=True)
    heard = TrainingReport(unit="j1.main", heard=1_700_000_001.0, said=said)
    trains = msgspec.structs.replace(seen.client.job("train"), training=(heard,))
    told = msgspec.json.encode({"job": trains, "more_tasks": 0}).decode()
    seen.go("/jobs")
    seen.browser.evaluate(
        """(async (told) => {
          const { show } = await import("/views/jobs.js");
          const element = document.createElement("div");
          document.getElementById("main").replaceChildren(element);
          const data = async (name) => { if (name === "job") return told; throw new Error("not here"); };
          show(element, { jobs: {} }, { rest: ["train"], data, onLeave() {}, go() {} });
        })("""
        + told
        + ")"
    )
    seen.wait("document.querySelector('[data-figure=step]')?.textContent === '42'")
    assert seen.figure("loss") == "0.5"
    assert seen.figure("world") == "2"
    assert seen.figure("resizes") == "yes"
    assert seen.figure("saved").startswith("step 40, ")
    assert seen.figure("energy").startswith("1.00 kWh")


def test_a_thousand_reconnects_leave_nothing_behind(seen: Seen) -> None:
    host, _, port = seen.url.removeprefix("http://").rstrip("/").partition(":")
    cookies = []
    for _ in range(4):
        secret = link(seen.living)["link"].partition("#link=")[2]
        with Connection(socket.create_connection((host, int(port)))) as connection:
            answer = connection.ask(
                "POST", "/session", {"Host": f"{host}:{port}"}, json.dumps({"link": secret}).encode()
            )
            assert answer.status == 204
            cookies.append(answer.headers["set-cookie"].partition(";")[0])
    before = descriptors(seen.process.pid)
    for number in range(1000):
        with socket.create_connection((host, int(port))) as stream:
            cookie = cookies[number % len(cookies)]
            stream.sendall(f"GET /stream HTTP/1.1\r\nHost: {host}:{port}\r\nCookie: {cookie}\r\n\r\n".encode())
            assert stream.recv(100).startswith((b"HTTP/1.1 200", b"HTTP/1.1 503"))
    until(lambda: descriptors(seen.process.pid) <= before + 4, "all connections are gone")
    seen.go("/now")
    seen.wait("document.querySelector('[data-figure=nodes_up]')?.textContent === '2'")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_page_that_is_not_known_says_so(seen: Seen) -> None:
    seen.go("/heatmap/2016")
    assert seen.browser.evaluate("document.querySelector('h1').textContent") == "Unknown page"
    assert "/heatmap/2016" in seen.text()
    assert seen.browser.evaluate("document.querySelectorAll('main a').length") >= len(VIEWS)


def test_everything_can_be_reached_by_keyboard(seen: Seen) -> None:
    seen.go("/now")
    seen.browser.press("Tab")
    assert seen.browser.evaluate("document.activeElement.textContent") == "Skip to the content"
    names: list[str] = []
    titles = seen.browser.evaluate("[...document.querySelectorAll('#views a')].map((one) => one.textContent)")
    assert len(titles) == len(VIEWS)
    for _ in range(4 + len(VIEWS)):
        seen.browser.press("Tab")
        names.append(seen.browser.evaluate("document.activeElement.textContent"))
    assert names[: 1 + len(VIEWS)] == ["Poise", *titles]


def no_barrier(seen: Seen) -> None:
    if not seen.browser.evaluate("Boolean(window.axe)"):
        seen.browser.evaluate(AXE.read_text())
    found = "axe.run(document).then(({violations}) => violations.map(({id, nodes}) => [id, nodes[0].html]))"
    assert seen.browser.evaluate(found) == [], seen.browser.evaluate("location.pathname")


def test_there_is_no_barrier_that_axe_finds(seen: Seen) -> None:
    """No rule of Axe depends on both a width and a colour. Axe looks at each page once, at every second one when it is
    narrow and dark; at all of them both ways if there are to be many looks.
    """
    report = seen.client.job("report")
    try:
        for number, path in enumerate((*VIEWS, f"/jobs/{report.id}", "/jobs/learns", "/nodes/fast", "/unknown")):
            seen.go(path)
            seen.wait("document.getElementById('who').textContent !== ''")
            for turn, (width, theme) in enumerate(((360, "dark"), (1400, "light"))):
                size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                seen.browser.call("Emulation.setDeviceMetricsOverride", **size)
                seen.browser.evaluate(f"document.documentElement.dataset.theme = {json.dumps(theme)}")
                if (number + turn) % many(2, 1) == 0:
                    no_barrier(seen)
                wide = seen.browser.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, (path, width, "scrolls sideways")
    finally:
        seen.browser.call("Emulation.clearDeviceMetricsOverride")


ASKING = """
kind: rules
every: 5s
rules:
  - name: waits
    mode: ask
    trigger: nodes_up > 0
    actions: [change_priority: {to: high, class: train}]
"""


def test_a_rule_that_asks_is_shown_with_the_command_that_answers(seen: Seen) -> None:
    seen.living.file("rules.yaml", ASKING)
    assert seen.living.poise("rules", "apply", "rules.yaml").code == 0
    until(lambda: seen.client.rules().rules[0].firings, "the rule asks", seen.living.messages)
    seen.go("/rules")
    asked = until(lambda: seen.rows("Waiting for approval"), "it is shown", seen.text)[0]
    assert asked[:2] == ["waits", "the fleet"]
    assert asked[4:] == ["poise rules approve waits", "poise rules deny waits"]
    assert "19 of 20" in seen.text()
    no_barrier(seen)
    assert seen.living.poise(*asked[4].split()[1:]).code == 0
    until(lambda: not seen.rows("Waiting for approval"), "nothing waits any more", seen.text)
    seen.living.file("rules.yaml", "{kind: rules, rules: []}")
    assert seen.living.poise("rules", "apply", "rules.yaml").code == 0


def test_an_incident_shows_its_cause_its_evidence_and_what_to_do(seen: Seen) -> None:
    def of_the_node() -> list[str]:
        """Incidents of it, by name: what a rule asks for is an incident as well."""
        return [one.id for one in seen.client.incidents() if str(one.cause.element) == "node slow"]

    assert of_the_node() == []
    agent = holder(seen.living.home.nodes / "slow" / "lock")
    os.kill(agent, signal.SIGSTOP)
    try:
        name = until(of_the_node, "it is an incident", seen.living.messages)[0]
        seen.go("/incidents")
        row = until(lambda: [row for row in seen.rows("Incidents") if row[0] == name], "it is shown", seen.text)[0]
        told = seen.client.incident(name)
        assert row[1] == "! open"
        assert row[2] == str(told.cause.element) == "node slow"
        seen.browser.evaluate(f"document.querySelector('main a[href=\"/incidents/{told.id}\"]').click()")
        seen.wait("Boolean(document.getElementById('hint'))")

        def is_shown() -> bool:
            now, text = seen.client.incident(told.id), seen.text()
            lines = (now.hint, *now.evidence, *now.done, *(step.text for step in now.timeline), *now.nodes)
            return all(line in text for line in lines) and f"{now.cause.score:.2f}" in text

        until(is_shown, "all of it is shown", seen.text)
        no_barrier(seen)
    finally:
        os.kill(agent, signal.SIGCONT)
    until(lambda: {node.status for node in seen.client.nodes()} == {"up"}, "it is back", seen.living.messages)


def test_no_page_has_written_an_error_to_the_console(seen: Seen) -> None:
    assert seen.browser.errors == []


def test_a_page_that_is_kept_shows_what_was_and_any_moment_of_it_without_a_server(seen: Seen, tmp_path: Path) -> None:
    recording = Recording(link(seen.living)["link"])
    until(recording.heard, "the state before the job is recorded")
    job = seen.living.poise("submit", "--name", "soon", "--", "sleep", "1000").text.strip()
    until(lambda: job in str(recording.heard()), "it is recorded")
    assert seen.living.poise("cancel", job).code == 0
    until(lambda: "cancelled" in str(recording.heard()), "its end is, too")
    file = tmp_path / "kept.html"
    file.write_text(recording.page("Kept", [job], ["fast"]))
    before = len(seen.browser.errors)
    seen.browser.open(file)
    seen.wait("document.querySelector('[data-figure=nodes_up]')?.textContent === '2'")
    shown = "document.querySelector('h1').textContent"
    for name, title in (
        ("jobs", "Jobs"),
        ("training", "Training"),
        ("energy", "Energy and cost"),
        ("timeline", "Timeline"),
    ):
        seen.browser.evaluate(f"document.querySelector('nav a[href=\"/{name}\"]').click()")
        seen.wait(f"{shown} === '{title}' && document.querySelectorAll('tbody tr').length > 0")
    seen.browser.evaluate(f"location.hash = '#/jobs/{job}'")
    seen.wait(f"{shown} === '{job}' && document.querySelector('.badge')?.textContent.includes('cancelled')")
    seen.browser.evaluate("document.querySelector('nav a[href=\"/jobs\"]').click()")
    row = f"(document.querySelector('tr[data-key={job}]')?.textContent ?? '')"
    seen.wait(f"{row}.includes('cancelled')")
    press(seen, "Past")
    seen.wait("document.getElementById('past').textContent.includes('Move the slider')")
    seen.browser.evaluate(
        "(() => { const slider = document.getElementById('moment'); slider.value = 0; "
        "slider.dispatchEvent(new Event('input')); })()"
    )
    seen.wait(f"document.getElementById('past').textContent.includes('poise ls --at') && !{row}")
    assert seen.browser.errors[before:] == []
    seen.go("/now")


def test_a_control_plane_that_is_killed_and_comes_back(seen: Seen) -> None:
    seen.go("/jobs")
    seen.wait("document.querySelectorAll('tbody tr').length >= 5")
    # The banner may be there for a moment only: note that it was.
    seen.browser.evaluate(
        "window.told = ''; const banner = document.getElementById('banner');"
        "new MutationObserver(() => { window.told += banner.textContent; }).observe(banner, {childList: true}), 0"
    )
    pid = seen.living.pid("control")
    kill(pid)
    until(lambda: not alive(pid), "it is gone")
    seen.wait("window.told?.includes('No control plane answers')")
    until(lambda: seen.living.pid("control") not in (0, pid), "another control plane runs")
    seen.wait("document.getElementById('banner').textContent === ''")
    job = seen.living.poise("submit", "--name", "after", "--", "sleep", "1000").text.strip()
    seen.wait(f"document.querySelector('tr[data-key={job}]')?.textContent.includes('pending')")
    assert seen.living.poise("cancel", job).code == 0


def test_a_tenant_sees_theirs_and_nothing_after_the_token_was_revoked(seen: Seen) -> None:
    added = seen.living.poise("token", "add", "--tenant", "ann", "--role", "submitter", "--json").value
    theirs = {"POISE_TOKEN": added["secret"]}
    job = seen.living.poise("submit", "--name", "anns", "--gpu", "2", "--", "true", **theirs).text.strip()
    seen.browser.call("Page.navigate", url="about:blank")
    seen.browser.wait()
    seen.browser.call("Page.navigate", url=link(seen.living, **theirs)["link"])
    seen.browser.wait()
    seen.wait("document.getElementById('who').textContent.includes('submitter of ann')")
    seen.wait("document.querySelector('[data-figure=unfinished]')?.textContent === '1'")
    seen.go("/jobs")
    seen.wait("document.querySelectorAll('tbody tr').length === 1")
    assert [row[0] for row in seen.rows("Unfinished jobs")] == [job]
    seen.go("/nodes/fast")
    devices = until(lambda: seen.rows("Devices"), "the devices are shown", seen.text)
    assert {row[2] for row in devices} == {"work of another tenant"}
    assert "train" not in seen.text()
    for name in ("services", "training"):
        assert seen.browser.evaluate(f"fetch('/data/{name}').then((answer) => answer.json())") == []
    spent = seen.browser.evaluate("fetch('/data/spent').then((answer) => answer.json())")
    assert [one["tenant"] for one in spent["tenants"]] == ["ann"] and [one["id"] for one in spent["jobs"]] == [job]
    assert (spent["nodes"], spent["waste"], spent["bill"]) == ([], [], None)
    assert seen.browser.evaluate("fetch('/data/job?job=train').then((answer) => answer.status)") == 404
    assert seen.living.poise("token", "rm", added["id"]).code == 0
    seen.wait("document.querySelector('h1').textContent === 'Access has ended'")
    assert "fast" not in seen.text()
    assert seen.browser.evaluate("fetch('/data/whoami').then((answer) => answer.status)") == 401
    seen.go("/jobs")
    seen.wait("document.querySelector('h1').textContent === 'No session'")


def test_a_dashboard_that_ends_says_so_on_its_pages(seen: Seen) -> None:
    seen.browser.call("Page.navigate", url="about:blank")
    seen.browser.wait()
    other = Living()
    try:
        other.up()
        process = other.start("dashboard", "--json", "--port", "0")
        told = first_value(process)
        page = Seen(other, process, told["url"], seen.browser)
        seen.browser.call("Page.navigate", url=told["link"])
        seen.browser.wait()
        page.wait("document.querySelector('[data-figure=nodes_up]')?.textContent === '1'")
        kill(process.pid, signal.SIGINT)
        assert ended(process).code == 0
        page.wait("document.getElementById('banner').textContent.includes('does not answer')")
        assert not other.home.dashboard_endpoint.exists()
    except BaseException:
        other.destroy()
        raise
    other.close()
