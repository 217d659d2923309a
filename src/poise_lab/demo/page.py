"""The page of `poise demo`: the live part, the table of the twin, and all drawings of `poise compare --report`."""

from poise_lab import panels
from poise_lab.compare import Comparison
from poise_lab.demo import compared
from poise_lab.demo.live import Live, Scene
from poise_lab.demo.promises import promises
from poise_lab.page import Page, timeline


def render(live: Live, told: Comparison) -> str:
    """Return the page; it needs no script, no network and no other file."""
    page = Page("What poise demo has shown", panels.PANELS)
    _live(page, live)
    page.tag("h2", "A week of a real cluster, in the twin")
    page.tag("p", f"{compared.ABOUT}.")
    page.tag("p", f"The best of each column is bold; {compared.BASELINES}.", class_="faint")
    _table(page, told)
    panels.draw(page, told)
    return page.text()


def _live(page: Page, live: Live) -> None:
    page.tag("h2", "Live, on four declared devices")
    text = f"{live.seconds:.0f} s of real processes on one machine. The devices are declared and their speeds emulated."
    page.tag("p", text, class_="faint")
    page.table(("promise", "what came of it", "kept"), promises(live))
    timeline(page, live.report.lanes, live.report.length)
    page.raw("<details open>")
    page.tag("summary", "What happened")
    page.table(("at", "what"), _story(live.scene))
    page.raw("</details>\n")


def _story(scene: Scene) -> list[tuple[str, str]]:
    return [(f"{moment.at:.1f} s", moment.text) for moment in scene.moments]


def _table(page: Page, told: Comparison) -> None:
    rows = compared.standings(told)
    page.raw('<div class="wide"><table>\n<tr>')
    page.tag("th", "policy")
    for column in compared.TABLE:
        page.tag("th", column.title, class_="number")
    page.raw("</tr>\n")
    for row in rows:
        page.raw("<tr>")
        page.tag("td", row.policy)
        for column in compared.TABLE:
            is_best = column.value(row) == compared.best(column, rows)
            page.tag("td", column.text(row), class_="number best" if is_best else "number")
        page.raw("</tr>\n")
    page.raw("</table></div>\n")
