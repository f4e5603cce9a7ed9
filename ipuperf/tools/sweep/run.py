"""Run the configurations of a sweep that are missing, on processes or a cluster, into a folder and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ipuperf.base.cores import cores
from ipuperf.base.kinds import checked
from ipuperf.base.near_names import instead_of
from ipuperf.base.progress import shows_progress
from ipuperf.tools.errors import SweepError

from .cluster import on_cluster
from .processes import in_processes
from .spec import SEED, Configuration, Sweep, read_sweep
from .store import Store
from .table import FORMATS, check_writable, table_of, write_table

if TYPE_CHECKING:
    import pandas as pd

_PIECES = 4
"""Pieces of work for each process, so that no process is left alone with a long piece at the end."""


@checked()
def run_sweep(
    sweep: Sweep | str | Path,
    out: str | Path,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    table: str | None = "parquet",
    retry: bool = False,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Simulate all configurations of a sweep that are not in ``out`` yet.

    Args:
        sweep: a sweep, or the TOML file of one.
        out: folder of the runs (``out/runs``) and of the table (``out/table.parquet``).
        jobs: number of processes; None: one for each core that this process may use.
        scheduler: address of a Dask cluster to use instead of processes.
        table: format of the table: ``parquet``, ``csv``, ``json``; None: no file.
        retry: run configurations again that failed before.
        progress: show a bar on standard error; None: if that is a terminal.

    Returns:
        A row for each configuration, in the order of the sweep and not of the runs.

    Raises:
        SweepError: see :class:`.spec.Sweep` and :func:`.cluster.on_cluster`.
        OSError: a file cannot be written; files that were written before stay.
    """
    if not isinstance(sweep, Sweep):
        sweep = read_sweep(sweep)
    if jobs is not None and jobs < 1:
        raise SweepError(f"{jobs} jobs, allowed: 1 or more")
    if table is not None:
        if table not in FORMATS:
            raise SweepError(f"table {table!r}{instead_of(table, FORMATS)}")
        check_writable(table)
    configurations = sweep.configurations()
    store = Store(Path(out))
    known = {key: store.row(key) for key in (sweep.key(configuration) for configuration in configurations)}
    rows = {key: row for key, row in known.items() if row is not None and not (retry and row.get("failure"))}
    missing = [configuration for configuration in configurations if sweep.key(configuration) not in rows]
    hidden = not (shows_progress() if progress is None else progress)
    with tqdm(total=len(configurations), initial=len(rows), desc="sweep", disable=hidden) as bar:
        for row in _made(sweep, missing, cores() if jobs is None else jobs, scheduler):
            # Rows arrive in any order, so each one says itself which configuration it is of.
            key = sweep.key({name: row[name] for name in (*sweep.factors, SEED)})
            store.write(key, row)
            rows[key] = row
            bar.update()
    sweep_table = table_of((rows[sweep.key(configuration)] for configuration in configurations), (*sweep.factors, SEED))
    if table is not None:
        write_table(sweep_table, store.folder / f"table.{table}")
    return sweep_table


def _made(sweep: Sweep, missing: Sequence[Configuration], jobs: int, scheduler: str | None) -> Iterator[dict[str, Any]]:
    if not missing and scheduler is None:
        return
    pieces = _pieces(sweep, missing, jobs)
    new_rows = in_processes(sweep, pieces, jobs) if scheduler is None else on_cluster(sweep, pieces, scheduler)
    # Closing ends the worker processes if the caller stops early.
    with closing(new_rows):
        yield from new_rows


def _pieces(sweep: Sweep, missing: Sequence[Configuration], jobs: int) -> list[list[Configuration]]:
    """The configurations in pieces. Configurations of one program are in one piece, so that they can share it."""
    programs: dict[str, list[Configuration]] = {}
    for configuration in missing:
        programs.setdefault(sweep.program_key(configuration), []).append(configuration)
    size = -(-len(missing) // (jobs * _PIECES))
    pieces: list[list[Configuration]] = [[]]
    for configurations in programs.values():
        if len(pieces[-1]) >= size:
            pieces.append([])
        pieces[-1] += configurations
    return [piece for piece in pieces if piece]
