"""Hooks of MkDocs: what the pages are, how they are ordered, and a search that works from a file.

The links of a page lead where they lead in the repository, so the site has the repository's shape: both READMEs beside
`docs/`. The order is that of docs/index.md, which has to name every page anyway. MkDocs' own search asks a server for
its index from a worker; a browser does neither for a page that it opened from a file: the index goes into the script.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#\s:]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The order of the pages, and anchors as a repository's pages have them."""
    config.mdx_configs["toc"] = {"slugify": _slug, "permalink": False}
    nav: list[Any] = [
        {"Poise": "README.md"},
        {"简体中文": "README.zh-CN.md"},
        {"Documentation": "docs/index.md"},
    ]
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for section in text.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        pages = re.findall(r"\[([^\]]+)\]\(([^)#\s]+\.md)\)", rest)
        nav.append({title: [{name: _place(target)} for name, target in pages]})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The repository's pages and the files that these link to, where they are in it; of the theme whatever it needs."""
    theirs = [file for file in files if file.abs_src_path and not Path(file.abs_src_path).is_relative_to(ROOT)]
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
    return re.sub(
        r"<table>.*?</table>", lambda table: f'<div class="table-responsive">{table[0]}</div>', html, flags=re.DOTALL
    )


def on_post_build(config: MkDocsConfig) -> None:
    """The index and the search as one script, in place of MkDocs' own."""
    folder = Path(config.site_dir) / "search"
    index = json.loads((folder / "search_index.json").read_text(encoding="utf-8"))
    pages = [[page["location"], page["title"], page["text"]] for page in index["docs"]]
    program = (ROOT / "docs" / "search.js").read_text(encoding="utf-8")
    for path in folder.iterdir():
        path.unlink()
    text = f"const PAGES = {json.dumps(pages, ensure_ascii=False)};\n{program}"
    (folder / "main.js").write_text(text, encoding="utf-8")


def _place(target: str) -> str:
    """A link of docs/index.md, from the root."""
    return (ROOT / "docs" / target).resolve().relative_to(ROOT).as_posix()


def _slug(heading: str, _: str) -> str:
    """As tests/docs holds links to it."""
    return re.sub(r"[^\w\- ]", "", heading.lower().strip()).replace(" ", "-")
