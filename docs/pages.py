"""Hooks of MkDocs: which pages there are, their order, the index of the search, and the colours of code.

The links of a page lead where they lead in the repository, so the site has the repository's shape: both READMEs beside
`docs/`. The order is that of docs/index.md, which names every page anyway. A browser fetches nothing for a page that is
opened as a file, so the index of the search is a script.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).resolve().parent.parent
THEME = ROOT / "docs" / "theme"
LINK = re.compile(r"\]\(([^)#\s:]+)")
PAGE = re.compile(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)")
WEIGHTS = {
    "docs/how-to/common-questions": 2.0,
    "docs/how-to": 1.3,
    "docs/tutorials": 1.2,
    "docs/decisions": 0.4,
    "docs/numbers": 0.4,
    "docs/checklists": 0.4,
    "docs/reference/python": 0.6,
    "CHANGELOG": 0.3,
    "docs/news": 0.2,
    "docs/index": 0.5,
}
"""How much a hit counts, by the beginning of its place: readers look for guides more often than for decisions."""

STYLES = {"light": "default", "dark": "github-dark"}
"""Pygments' colours, by the theme."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The order of the pages, and anchors as a repository's pages have them."""
    config.mdx_configs["toc"] = {"slugify": _slug, "permalink": False}
    nav: list[Any] = [
        {"Poise": "README.md"},
        {"简体中文": "README.zh-CN.md"},
        {"Common questions": "docs/how-to/common-questions.md"},
        {"All pages": "docs/index.md"},
    ]
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        first, *groups = rest.split("\n### ")
        entries: list[Any] = _pages(first)
        entries += [{group.partition("\n")[0]: _pages(group)} for group in groups]
        nav.append({title: entries})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The repository's pages and the files that these link to, where they are in it; of the theme its files."""
    theirs = [file for file in files if file.abs_src_path and file.src_dir == str(THEME)]
    paths = set(ROOT.glob("*.md"))
    paths |= {path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "news" or path.name == "README.md"}
    for page in list(paths):
        linked = (page.parent / target for target in LINK.findall(page.read_text(encoding="utf-8")))
        paths |= {path.resolve() for path in linked if path.is_file()}
    ours = [File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)) for path in sorted(paths)]
    return Files([*ours, *theirs])


def on_page_content(html: str, **_: Any) -> str:
    """Wide tables scroll by themselves. And `\\|`, which a repository's pages need for a bar in the cell of a table, is
    one, in code too.
    """
    html = re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)
    return re.sub(r"<table>.*?</table>", lambda table: f'<div class="wide">{table[0]}</div>', html, flags=re.DOTALL)


def on_post_build(config: MkDocsConfig) -> None:
    """The index of the search as a script in place of MkDocs' file, and the colours of code for both themes."""
    site = Path(config.site_dir)
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    titles: dict[str, str] = {}
    sections = []
    for section in index["docs"]:
        place, is_section, _ = section["location"].partition("#")
        if not is_section:  # the whole page, which its sections hold too
            continue
        if place not in titles:  # the first heading: its text begins the page
            titles[place] = section["title"]
            section["location"] = place
        sections.append([section["location"], titles[place], section["title"], section["text"], _weight(place)])
    text = json.dumps(sections, ensure_ascii=False, separators=(",", ":"))
    (site / "search" / "search_index.json").unlink()
    (site / "search" / "index.js").write_text(f"searchable({text});\n", encoding="utf-8")
    (site / "colours.css").write_text(_colours(), encoding="utf-8")


def _pages(text: str) -> list[Any]:
    """The pages that a part of docs/index.md links to, from the root, by their titles."""
    return [{_title(name): _place(target)} for name, target in PAGE.findall(text)]


def _title(name: str) -> str:
    """The text of a link, which may stand in a sentence, as an entry of the sidebar."""
    plain = name.replace("`", "")
    return plain[:1].upper() + plain[1:]


def _place(target: str) -> str:
    """A link of docs/index.md, from the root."""
    return (ROOT / "docs" / target).resolve().relative_to(ROOT).as_posix()


def _weight(place: str) -> float:
    return next((weight for start, weight in WEIGHTS.items() if place.startswith(start)), 1.0)


def _colours() -> str:
    """Those of the dark theme count where the reader, or else the system, has chosen it."""
    light, dark = (HtmlFormatter(style=style).get_style_defs(".highlight") for style in STYLES.values())
    chosen = f':root[data-theme="dark"] {{\n{dark}\n}}\n'
    system = f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{\n{dark}\n}} }}\n'
    return f"{light}\n{chosen}{system}.highlight {{ background: none !important; }}\n"


def _slug(heading: str, _: str) -> str:
    """As tests/docs holds links to it."""
    return re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", "-")
