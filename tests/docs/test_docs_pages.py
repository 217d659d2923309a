"""The pages hang together: links, both READMEs, examples, generated reference, and nothing of the writer's machine."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PEERS = ROOT / "docs" / "explanation" / "beside-the-peers.md"
MACHINE = re.compile(r"/wor[k]/|/roo[t]/|/tmp/\w|/home/(?!you\b)\w|localhost:\d|https?://(?!poise/)")


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from LINK.findall(text)


def slug(heading: str) -> str:
    """The anchor that a heading gets."""
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower().strip())
    return kept.replace(" ", "-")


def headings(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"^#+ (.+)$", text, re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in links(page):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in map(slug, headings(found))):
            broken.append(target)
    assert broken == []


def test_every_page_is_reached_from_the_index() -> None:
    targets = {(page.parent / target.partition("#")[0]).resolve() for page in PAGES for target in links(page)}
    alone = [page for page in PAGES if page not in targets and page.name != "README.md" and page.parent.name != "news"]
    assert [str(page.relative_to(ROOT)) for page in alone] == []


def test_both_readmes_have_the_same_shape() -> None:
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    assert len(headings(english)) == len(headings(chinese))
    assert blocks(english) == blocks(chinese)


def test_examples_in_pages_are_the_files() -> None:
    for page in PAGES:
        for language, text in blocks(page):
            name, _, rest = text.partition("\n")
            if language == "yaml" and name.startswith("# examples/"):
                assert rest == (ROOT / name[2:]).read_text(encoding="utf-8"), f"{page.name}: {name[2:]}"


def test_the_reference_is_made_from_this_code() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_of_the_writers_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page == PEERS:  # each of its cells has its source, and tests/docs/test_peers.py holds these to a few places
        text = re.sub(r"\]\(https://[^)\s]+\)", "]", text)
    assert MACHINE.findall(text) == []


def test_the_page_of_the_architecture_lists_each_long_file() -> None:
    """And no other: `poise/` is left out there, and `.py`."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"`([\w/]+)`", text[text.index("## Long files") : text.index("## Next")])
    files = [path for top in (ROOT / "src").iterdir() for path in top.rglob("*.py")]
    long = {path.relative_to(ROOT / "src").with_suffix("").as_posix(): _lines(path) for path in files}
    assert sorted(listed) == sorted(name.removeprefix("poise/") for name, lines in long.items() if lines > 400)


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")
