"""The documentation as a site: every page is reached, nothing comes from elsewhere, and the search needs no server."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_search_finds_without_a_server(site: Path) -> None:
    program = site / "search" / "main.js"
    assert [path.name for path in program.parent.iterdir()] == ["main.js"]
    text = program.read_text(encoding="utf-8")
    assert not re.search(r"Worker|fetch\(|XMLHttpRequest|importScripts", text.partition("];\n")[2])
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run the search with")
    asked = "console.log(found('critical path').length, found('no-such-word-anywhere').length)"
    done = subprocess.run([node, "-"], input=text + asked, capture_output=True, text=True, check=True)
    hits, none = map(int, done.stdout.split())
    assert hits > 2
    assert none == 0


def test_a_fetch_would_be_seen() -> None:
    assert FETCHED.findall('<script async src="https://x/y.js">') == ["https://x/y.js"]
    assert FETCHED.findall('<link rel="stylesheet" href="//x/y.css">') == ["//x/y.css"]
    assert IN_STYLES.findall("@import url(https://x/f.css)") == ["https://x/f.css"]
