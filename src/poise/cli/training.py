"""The training reports of a job, as `poise show` prints them."""

from collections.abc import Iterator

from poise.cli.render import ago
from poise.model.reports.jobs import JobReport
from poise.model.training import Saved, Training
from poise.units import format_bytes, format_duration, format_energy


def lines(report: JobReport) -> Iterator[str]:
    """Yield a few lines for each unit that reports training, with its name if there are several."""
    for one in report.training:
        what = f"training {one.unit.partition('.')[2]}" if len(report.training) > 1 else "training"
        told = [text for text in _told(one.said) if text]
        heard = f"; as of {ago(one.heard)} ago" if report.exit_code is None else ""
        yield f"{what}: {told[0]}{heard}"
        yield from (f"  {text}" for text in told[1:])


def _told(said: Training) -> Iterator[str]:
    yield _joined(
        "evaluating" if said.evaluating else "",
        f"{said.phase} phase" if said.phase else "",
        f"step {said.step:,}",
        f"{said.progress / 10_000:.3g} % done" if said.progress >= 0 else "",
        f"{said.safe / 10_000:.3g} % safe" if said.safe >= 0 else "",
        f"loss {said.loss:.4g}" if said.loss else "",
        f"learning rate {said.rate:.3g}" if said.rate else "",
    )
    yield _joined(
        f"throughput {said.throughput / 1000:,.4g} samples/s of late" if said.throughput else "",
        f"goodput {said.goodput / 1000:,.4g} samples/s since it first began" if said.goodput else "",
        f"{format_duration(said.step_time)} a step" if said.step_time else "",
        f"{format_duration(said.compute)} of it computing" if said.compute else "",
    )
    yield _joined(_batch(said), said.precision)
    yield _exchanged(said)
    yield f"energy {format_energy(said.energy)} ({said.energy_source or 'unknown source'})" if said.energy else ""
    budget = f" of the {format_bytes(said.budget)} it may use" if said.budget else ""
    yield f"memory of a worker {format_bytes(said.memory)} at most{budget}" if said.memory else ""
    yield _saved(said.checkpoint, said.step) if said.checkpoint is not None else "no checkpoint yet"
    yield f"restored: {said.restored}" if said.restored else ""
    yield "follows orders to grow and shrink between steps" if said.resizes else ""
    yield f"advice: {said.advice}" if said.advice else ""


def _batch(said: Training) -> str:
    if not said.batch:
        return ""
    factors = [f"batch {said.batch:,}", f"{said.accumulation:,} accumulated"]
    factors.append(f"{said.world:,} worker{'s' if said.world != 1 else ''}")
    return f"{' x '.join(factors)}{f' = {said.effective:,} samples a step' if said.effective else ''}"


_ROUTES = {"levels": "levels: inside each node, then between nodes", "tree": "a tree"}


def _exchanged(said: Training) -> str:
    if not said.sent:
        return ""
    saved = f", {100 - 100 * said.sent / said.plain:.0f} % less than the {format_bytes(said.plain)} of plain"
    return _joined(
        f"{format_bytes(said.sent)} sent a step{saved if said.sent < said.plain else ''}",
        f"added up in {_ROUTES.get(said.route, said.route)}" if said.route else "",
    )


def _saved(saved: Saved, step: int) -> str:
    return _joined(
        f"checkpoint of step {saved.step:,}",
        f"{ago(saved.at)} ago" if saved.at else "",
        f"{step - saved.step:,} steps since" if step > saved.step else "",
        format_bytes(saved.bytes) if saved.bytes else "",
        f"stall {format_duration(saved.stall)}" if saved.stall else "",
        f"{format_duration(saved.slowed)} longer in the steps beside it" if saved.slowed else "",
        f"written in {format_duration(saved.took)}" if saved.took else "",
        f"{saved.kept:,} kept",
        f"one each {format_duration(saved.every)}" if saved.every else "",
    )


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
