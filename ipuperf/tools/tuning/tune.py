"""Tune a model or script: search its space and write the answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ipuperf.base.kinds import checked
from ipuperf.base.progress import shows_progress
from ipuperf.tools.errors import TuningError, UnknownOption

from .answer import Answer, answer_of
from .bounds import Bounds, machine_of
from .evaluate import Outcomes
from .files import write_files
from .search import TuningSearch
from .space import TuningSpace
from .workers import Workers

_SHARE = 10
"""By default one configuration in so many is lowered."""
_FEWEST, _MOST = 8, 100
"""The smallest and the largest default number of trials."""


@checked()
def tune(
    space: TuningSpace,
    out: str | Path | None = None,
    *,
    trials: int | None = None,
    seed: int = 0,
    start: Mapping[str, Any] | None = None,
    jobs: int = 1,
    progress: bool | None = None,
) -> Answer:
    """Find the fastest configuration that fits.

    Args:
        space: the configurations that are searched.
        out: folder of the outcomes (``out/runs``, from which a stopped tuning goes on) and of the answer
            (``out/answer``: ``answer.json``, ``scenario.toml``, and for a model ``poptorch_options.py`` and
            ``popxl_settings.py``); None: nothing is written.
        trials: the largest number of configurations that are lowered (default: a tenth of them, 8 to 100).
        seed: seed of Optuna's proposals, which models with probes do not need. The same seed finds the same answer.
        start: a configuration of the space to begin with.
        jobs: number of processes. So many configurations are tried at a time, and the next ones when all of those are
            known. The same number finds the same answer.
        progress: show a bar on standard error; None: if that is a terminal.

    Raises:
        TuningError: a package of the extra ``tune`` is missing, the model has no such ``config.NAME``, the start is not
            in the space, nothing fits, or a worker process is killed twice. OSError: something cannot be written.
    """
    count = len(space.configurations)
    if trials is None:
        trials = min(max(_FEWEST, -(-count // _SHARE)), _MOST)
    if trials < 1:
        raise TuningError(f"{trials} trials, allowed: 1 or more")
    start_places: tuple[int, ...] = ()
    if start is not None:
        place = space.place({name: start.get(name) for name in space.names})
        if place is None:
            raise TuningError("the configuration to begin with is not among those that are searched")
        start_places = (place,)
    folder = None if out is None else Path(out)
    if jobs < 1:
        raise TuningError(f"{jobs} jobs, allowed: 1 or more")
    bounds, workers = Bounds(space.sweep, machine_of(space.sweep)), Workers(jobs)
    evaluator = Outcomes(space.sweep, space.global_batch, folder, workers)
    hidden = not (shows_progress() if progress is None else progress)
    try:
        search = TuningSearch(space, bounds, evaluator, trials, seed, start_places)
        with workers.running():
            _run(search, hidden)
    except UnknownOption as error:
        raise TuningError(f"model {space.sweep.model!r}: {_reason(error)}") from None
    answer = answer_of(search)
    if folder is not None:
        write_files(folder / "answer", answer, space.sweep)
    return answer


def _run(search: TuningSearch, hidden: bool) -> None:
    """Build the probes, then try configurations, each with a bar."""
    with tqdm(desc="probes", disable=hidden) as bar:
        for left in search.learn():
            # The first number is that of all probes.
            bar.total = bar.total or left
            bar.update(bar.total - left - bar.n)
    with tqdm(total=search.trials, desc="tune", disable=hidden) as bar:
        for _ in search.run():
            bar.update()
            if search.best is not None:
                bar.set_postfix_str(f"best {search.limit:.4g} s, {len(search.open):,} open")


def _reason(error: UnknownOption) -> str:
    """The text of an error after the names of file and case, which a tuning does not have."""
    return str(error).partition(": case ")[2].partition(": ")[2]
