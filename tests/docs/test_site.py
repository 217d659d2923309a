"""The documentation as a site: it holds every page, fetches nothing, and works in a browser from files."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import Browser, running

ROOT = Path(__file__).resolve().parent.parent.parent
FETCHED = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
IN_STYLES = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make site` builds it: what is not reached, or leads nowhere, is an error."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: `make setup`")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    assert len(pages) > 40
    found = {}
    for path in pages:
        text = path.read_text(encoding="utf-8")
        if outside := FETCHED.findall(text) + IN_STYLES.findall(text):
            found[path.name] = outside
    assert found == {}


def test_both_readmes_and_every_page_are_there(site: Path) -> None:
    for page in ("index.html", "README.zh-CN.html", "docs/index.html", "docs/tutorials/first-job.html"):
        assert (site / page).exists(), page
    built = {path.relative_to(site).with_suffix(".md") for path in (site / "docs").rglob("*.html")}
    pages = {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "news"}
    assert pages <= built


def test_code_has_colours(site: Path) -> None:
    page = (site / "docs" / "tutorials" / "first-job.html").read_text(encoding="utf-8")
    assert '<span class="gp">$ </span>' in page
    assert re.search(r'class="nt">resources</span>', page)
    assert (site / "colours.css").read_text(encoding="utf-8").count(".highlight .gp") == 3


def test_guides_are_grouped(site: Path) -> None:
    page = (site / "docs" / "how-to" / "use-gpus.html").read_text(encoding="utf-8")
    groups = re.findall(r'data-group="([^"]+)"', page)
    assert groups[groups.index("Guides") + 1 :][:5] == ["Use", "Train", "Serve", "Operate", "Simulate"]
    assert re.search(r'<a href="use-gpus.html" aria-current="page">', page)
    titles = re.findall(r'<a href="[^"]+\.html"[^>]*>([^<]+)</a>', page.partition("<main")[0])
    assert [title for title in titles if title[0].islower() or "`" in title] == []


def test_the_chinese_page_has_a_chinese_sidebar(site: Path) -> None:
    page = (site / "README.zh-CN.html").read_text(encoding="utf-8")
    titles = re.findall(r"<summary>([^<]+)</summary>", page)
    assert titles
    assert [title for title in titles if title.isascii()] == []


QUESTIONS = {
    "GPU": "use-a-gpu",
    "sweep": "sweep",
    "after": "run-after-another-job",
    "memory": "limit-memory",
    "add a machine": "add-a-machine",
    "where are the logs": "where-are-the-logs",
    "why is it not retried": "why-was-my-job-not-retried",
    "is my code copied": "is-my-code-copied",
    "limit run time": "limit-run-time",
    "use a container": "use-a-container",
}
"""What readers ask who have not seen the site, and a part of the place where the answer is."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running() as browser:
        yield browser


@pytest.fixture
def page(site: Path, browser: Browser) -> Iterator[Browser]:
    """A guide, opened from its file. Whatever a script throws fails the test."""
    browser.open(site / "docs" / "how-to" / "use-gpus.html")
    yield browser
    assert browser.errors == []


def ask(page: Browser, text: str) -> list[str]:
    """Type it into the search field; the places of the hits that are shown, best first."""
    page.evaluate("query.value = ''")
    page.press("/")
    page.call("Input.insertText", text=text)
    places: list[str] = page.evaluate(
        "show().then(() => [...document.querySelectorAll('#results a')].map((link) => link.href))"
    )
    return places


def test_ten_questions_are_answered_by_the_first_three_hits(page: Browser) -> None:
    hits = {question: ask(page, question)[:3] for question in QUESTIONS}
    missed = {
        question: hits[question]
        for question, place in QUESTIONS.items()
        if not any(place in hit for hit in hits[question])
    }
    assert missed == {}


def test_hits_lead_to_sections_that_are_there(page: Browser, site: Path) -> None:
    for hit in ask(page, "critical path"):
        file, _, anchor = unquote(hit).removeprefix(f"{site.as_uri()}/").partition("#")
        text = (site / file).read_text(encoding="utf-8")
        assert not anchor or f'id="{anchor}"' in text, hit


def test_words_match_by_their_stems_and_their_beginnings(page: Browser) -> None:
    assert ask(page, "scheduling ") == ask(page, "schedules ")
    assert ask(page, "walltim")
    assert ask(page, "xyzzyplugh") == []
    assert "Nothing found" in page.evaluate("results.textContent")
    assert any("zh-CN" in place for place in ask(page, "任务图"))


def test_enter_opens_the_best_hit(page: Browser) -> None:
    best = ask(page, "limit run time")[0]
    page.press("Enter")
    page.wait()
    assert page.evaluate("location.href") == best


def test_the_sidebar_stays_as_it_is_from_page_to_page(page: Browser, site: Path) -> None:
    page.evaluate("document.querySelector('[data-group=Decisions]').open = true")
    page.evaluate("sidebar.scrollTop = 40")
    page.open(site / "docs" / "how-to" / "limit-memory.html")
    assert page.evaluate("document.querySelector('[data-group=Decisions]').open")
    assert page.evaluate("document.querySelector('[data-group=Use]').open")
    assert page.evaluate("document.querySelector('[aria-current]').textContent") == "Limit memory"
    assert page.evaluate("sidebar.scrollTop") == 40


def test_of_a_session_in_a_shell_the_commands_are_copied(page: Browser, site: Path) -> None:
    page.open(site / "docs" / "how-to" / "run-after-another-job.html")
    copies = page.evaluate("[...document.querySelectorAll('main pre')].map(copied)")
    assert copies[0].splitlines()[:2] == ["poise up", "poise submit --name prepare -- sleep 3"]
    assert page.evaluate(
        "document.querySelectorAll('main pre').length == document.querySelectorAll('.code button').length"
    )


def test_light_and_dark_are_remembered(page: Browser, site: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(colour)
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(colour) != before
    page.open(site / "index.html")
    assert page.evaluate(colour) != before


def test_a_fetch_would_be_seen() -> None:
    assert FETCHED.findall('<script async src="https://x/y.js">') == ["https://x/y.js"]
    assert FETCHED.findall('<link rel="stylesheet" href="//x/y.css">') == ["//x/y.css"]
    assert IN_STYLES.findall("@import url(https://x/f.css)") == ["https://x/f.css"]
