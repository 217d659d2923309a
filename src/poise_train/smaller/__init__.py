"""Compresses models, and measures each candidate against the original before it is used.

    class Digits:
        def load(self) -> None:
            model, images, labels = ...
            self.model = smaller(model, images, by=accuracy(labels)).model

`smaller` takes a PyTorch module in fp32, or the path of an ONNX file, and representative inputs. It converts the model
to other precisions (int8, bf16, fp16, mixed; or removes a part of its weights, see `pruned`). It measures all of them
in turn on this machine: bytes of weights, peak memory, time by batch size, and the difference of the answers. It takes
the fastest candidate that keeps 95 % (`kept`), or the one requested by name, if it keeps that; otherwise the original.
The reasons go to stderr, and so to `poise logs` of a replica. They are also in the report, a record that
`msgspec.json.encode` accepts.

The requested precision is `asked`, or else POISE_PRECISION, which the `precision` of a service sets, or else `auto`.

PyTorch needs `poise-scheduler[torch]`, ONNX files need `poise-scheduler[onnx]`; importing this module imports neither.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from poise.errors import InputError, extra
from poise.model.precision import AS_IT_IS, AUTO, VARIABLE, Measured, PrecisionName, Report
from poise_train.policy.precision import choose
from poise_train.smaller.agreement import Agreement, accuracy, neighbours, top1
from poise_train.smaller.measure import Family, Way, measure
from poise_train.smaller.telling import lines

BATCHES = (1, 8, 64)
"""Batch sizes to time, limited by the largest batch that the service may send."""

SECONDS = 3.0
"""Time limit for all candidates together, in seconds; each is timed at least three times."""


class Smaller(NamedTuple):
    """The model to use, and the measurements. The model is called like the original; for a file, it is an
    `onnxruntime.InferenceSession`.
    """

    model: Any
    report: Report


def smaller(
    model: Any,
    inputs: Any,
    *,
    candidates: Sequence[str | Way] = (),
    asked: str = "",
    kept: float = 0.95,
    by: Agreement = top1,
    batches: Sequence[int] = (),
    seconds: float = SECONDS,
) -> Smaller:
    """Return the model in the fastest precision on this machine that keeps enough quality.

    `inputs`: one tensor (or array) whose first dimension counts inputs; a tuple or a mapping of them for models with
    several inputs. A few hundred representative inputs are enough. `candidates`: precisions and other ways that `auto`
    may take, by default all for this kind of model. `by`: measure of the share of quality that a candidate keeps:
    `top1`, `accuracy(labels)`, `neighbours`, or a function of the outputs of both. The model itself is set to `eval()`,
    and not changed otherwise. All candidates are in memory while they are measured.
    """
    family = _family(model)
    asked = asked or os.environ.get(VARIABLE, "") or AUTO
    ways = _ways(family, candidates, asked)
    if not 0 < kept <= 1:
        raise InputError("the share must be above 0 and at most 1", field="kept", have=str(kept))
    largest = int(os.environ.get("POISE_SERVICE_BATCH", max(BATCHES)))
    sizes = sorted(set(batches) or {min(size, largest) for size in BATCHES})
    if sizes[0] < 1:
        raise InputError("batch sizes must be at least 1", field="batches", have=str(sizes[0]))
    measured, made = measure(family, ways, inputs, by, sizes, seconds)
    taken = choose(measured, asked, kept)
    name = getattr(by, "__name__", type(by).__name__)
    report = Report(asked=asked, kept=kept, by=name, measured=measured, taken=taken.name, why=taken.why)
    sys.stderr.write("".join(f"poise: {line}\n" for line in lines(report)))
    return Smaller(made[taken.name], report)


def pruned(share: float, *, rows: bool = False) -> Way:
    """Return a candidate without that share of a PyTorch module's weights: those nearest to zero, over all layers.

    The weights are set to zero, which alone saves neither time nor memory. With `rows`, whole units of hidden layers
    are removed, those with the smallest weights, between consecutive layers of a `Sequential`. In both cases the model
    usually needs more training before it is saved; the report shows the quality that is left, and the savings.
    """
    if not 0 < share < 1:
        raise InputError("the share must be between 0 and 1", field="share", have=str(share))
    from poise_train.smaller import modules

    return Way(f"pruned{'-rows' if rows else ''}-{share:.0%}", modules.pruning(share, rows=rows))


def _family(model: Any) -> Family:
    """Return the family of the model, and import its libraries."""
    if isinstance(model, str | Path):
        with _extra("onnx"):
            from poise_train.smaller import sessions
        return sessions.Files(Path(model))
    if not hasattr(model, "state_dict"):
        raise InputError(
            "this is neither a PyTorch module nor an ONNX file",
            field="model",
            have=type(model).__name__,
            hint="smaller(module, inputs), or smaller('model.onnx', inputs)",
        )
    from poise_train.smaller import modules

    return modules.Modules(model)


@contextlib.contextmanager
def _extra(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"{error.name} is not installed", field="model", hint=extra(name)) from None


def _ways(family: Family, candidates: Sequence[str | Way], asked: str) -> list[Way]:
    """Return the candidates to try: all, or the requested one."""
    known = {way.name: way for way in family.ways}
    for one in candidates:
        if isinstance(one, str) and one not in known:
            raise InputError("no such precision", field="candidates", have=one, need=", ".join(known))
    given = [known[one] if isinstance(one, str) else one for one in candidates] or list(known.values())
    known |= {way.name: way for way in given}
    if asked == AUTO:
        return given
    if asked not in (AS_IT_IS, *known, *get_args(PrecisionName)):
        raise InputError("no such precision", field="asked", have=asked, need=", ".join((AUTO, AS_IT_IS, *known)))
    return [] if asked == AS_IT_IS else [known.get(asked) or Way(asked, _not_there)]


def _not_there(*_: Any) -> Any:
    raise ValueError("there is none for such models")


__all__ = ["Measured", "Report", "Smaller", "Way", "accuracy", "neighbours", "pruned", "smaller", "top1"]
