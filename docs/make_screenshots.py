"""Make the pictures of the dashboard in docs/images: `python docs/make_screenshots.py`, after `make setup servers`.

They are those of a running Poise with real jobs, the one that the tests of the dashboard watch.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from system.watching import watched  # noqa: E402

PICTURES = {
    "now": "/now",
    "queue": "/queue",
    "job": "/jobs/report",
    "timeline": "/timeline",
    "decisions": "/decisions",
    "training": "/training",
    "energy": "/energy",
}
READY = {
    "now": "document.querySelectorAll('tbody tr').length === 2",
    "queue": "Boolean(document.querySelector('.start'))",
    "job": "Boolean(document.querySelector('pre'))",
    "timeline": "document.querySelectorAll('tbody tr').length > 5",
    "decisions": "document.querySelectorAll('tbody tr').length > 5",
    "training": "Boolean(document.querySelector('svg.chart'))",
    "energy": "Boolean(document.querySelector('[data-figure=energy]'))",
}
SIZE = {"width": 1200, "height": 620, "deviceScaleFactor": 1, "mobile": False}


def main() -> None:
    with watched(works=True) as seen:
        seen.browser.call("Emulation.setDeviceMetricsOverride", **SIZE)
        for name, path in PICTURES.items():
            seen.go(path)
            seen.wait(READY[name])
            to = ROOT / "docs" / "images" / f"dashboard-{name}.png"
            seen.browser.screenshot(to)
            print(f"{to.relative_to(ROOT)}: {to.stat().st_size} bytes")


if __name__ == "__main__":
    main()
