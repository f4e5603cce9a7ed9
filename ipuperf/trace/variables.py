"""The variables of a trace, a row for each, with its runs of tiles beside it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ipuperf.trace.columns import Words
from ipuperf.trace.folded import FoldedVariables
from ipuperf.trace.tables import Columns, TraceTables

_TILES = ("tile_from", "tile_to", "bytes")


class VariableRows(NamedTuple):
    """Variables in columns.

    Attributes:
        columns: those of table ``variables`` without tiles; ``bytes`` are those of all tiles.
        first: the place of the first run of tiles of each variable.
        runs: how many runs it has.
        tiles: the runs of all variables: ``tile_from``, ``tile_to``, ``bytes``.
    """

    columns: Columns
    first: np.ndarray
    runs: np.ndarray
    tiles: Columns


def variable_rows(trace: TraceTables) -> VariableRows:
    """The variables of a trace. Those of a folded table share runs of tiles, as the table does."""
    folded = trace.folded("variables")
    if isinstance(folded, FoldedVariables):
        arrays = folded.arrays
        words = {name: Words(folded.words[group], arrays[name]).strings() for name, group in folded.INDICES.items()}
        columns = {"var_id": np.arange(len(arrays["first"])), **words}
        columns |= {name: arrays[name] for name in ("op_id", "ipu", "class_id")}
        columns["always_live"] = arrays["always_live"] != 0
        first, runs, tiles = arrays["first"], arrays["runs"], {name: arrays[name] for name in _TILES}
    else:
        table = trace.columns("variables")
        # A variable has rows of its own on each IPU and in each kind of memory.
        on_tiles = table["location"] == "tile"
        order = np.lexsort((on_tiles, table["ipu"], table["var_id"]))
        keys = np.stack([table["var_id"], table["ipu"], on_tiles], axis=1)[order]
        first = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))[: len(order)]
        runs = np.diff(first, append=len(order))
        tiles = {name: table[name][order] for name in _TILES}
        columns = {name: values[order[first]] for name, values in table.items() if name not in _TILES}
    before = np.concatenate([[0], np.cumsum(tiles["bytes"])])
    return VariableRows({**columns, "bytes": before[first + runs] - before[first]}, first, runs, tiles)
