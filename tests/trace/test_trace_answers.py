"""What a trace says to every change of a cell by one and to every argument at its limit, and to questions of all kinds.

The changes are made to a small trace in which everything that a rule bounds is at its bound.
"""

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import digest
import numpy as np
import pytest
from answers import answer, asked, listed, together
from programtext import checksum
from rows import Golden

from ipuperf.trace import TABLES, FoldedInstances, Trace, Words, check, fold, store
from ipuperf.trace import columns as column_checks
from ipuperf.trace.compare import figures
from ipuperf.trace.folded import FOLDED, FoldedTable
from ipuperf.trace.html import MOST_IPUS
from ipuperf.trace.schema import BELOW
from ipuperf.trace.sql import units

HERE = Path(__file__).parents[1] / "golden"
META = {"machine": "m", "clock_hz": 10**9, "tiles_per_ipu": 2, "bytes_per_tile": 100, "num_ipus": 2}
TIGHT = {
    "ops": [(0, "a/x", "X", "a", "fwd", 7, "x.py:1", "float16", "a"), (4, "a/y", "Y", "a", "update", 1, "", "", "a")],
    "programs": [(0, -1, 0, "Sequence", "main", -1, -1), (1, 0, 0, "OnTileExecute", "x", 0, 0),
                 (2, 0, 1, "DoExchange", "y", 4, 1)],
    "steps": [(0, 0, 1, 0, "compute", 0, 10, 10.0, 2, 1, 0, 0, 8, 0, -1),
              (0, 1, 2, 4, "exchange", 10, 5, 2.5, 1, 0, 3, 4, 0, 0, 0),
              (0, 2, 1, 0, "compute", 20, 4, 1.0, 1, -1, 0, 0, 2, 0, -1),
              (0, 3, -1, -1, "idle", 0, 24, 0.0, 0, -1, 0, 0, 0, 1, -1),
              (3, 0, 2, 4, "link", 0, 8, 8.0, 2, -1, 5, 6, 0, 0, -1)],
    "loops": [(0, -1, 2, 5), (1, 0, 1, 0)],
    "instances": [(0, 0, 0, 0, 0, 0, 0, 24, 0), (1, 3, 0, 0, -1, -1, 24, 8, 0), (2, 3, 1, 0, 1, 1, 0, 8, 0)],
    "tile_runs": [(0, 0, 0, 2, 10, 0)],
    "plans": [(0, 0, 0, 10, 2, 40, "Conv", "1 x 1")],
    "tile_memory": [(0, 0, "variableAlwaysLive", 50), (0, 0, "variableNotAlwaysLive", 40), (0, 0, "stack", 10),
                    (0, 1, "variableAlwaysLive", 50), (0, 1, "variableNotAlwaysLive", 30), (0, 1, "stack", 10)],
    "code": [(-1, 0, "stack", 0, 2, 16), (4, 0, "stack", 1, 2, 2), (0, 0, "stack", 0, 1, 2)],
    "variables": [(0, "w", -1, "weight", "float16", 0, 0, 2, 120, True, "tile", 0),
                  (1, "y", 4, "output", "float16", 0, 0, 1, 40, False, "tile", 1),
                  (1, "y", 4, "output", "float16", 0, 1, 2, 30, False, "tile", 1)],
    "live_intervals": [(1, 0, 1), (0, 0, 2)],
    "liveness": [(0, 0, "x", 120, 70, 100, 0), (0, 1, "y", 120, 0, 60, 0)],
    "links": [(0, "a->b", "ipu_link", "a", "b", 1e9, 3)],
    "transfers": [(0, 0, 24, 7, 8, 4, "p2p", 0)],
    "counters": [("c", 0, 1.0)],
    "host_events": [("e", "host", 0, 3)],
    "runs": [(0, "r", 0, 32)],
}  # fmt: skip


@cache
def tight() -> dict[str, dict[str, list[Any]]]:
    """Columns of all tables; nothing in them breaks a rule."""
    found = {
        name: {c: [row[n] for row in rows] for n, c in enumerate(TABLES[name].column_names)}
        for name, rows in TIGHT.items()
    }
    assert check(Trace(META, found)) == []
    return found


def outcomes(changed: list[Callable[[], list[str]]]) -> dict[str, str]:
    """How many sentences each change gives (``k``: it is kept, with an answer), the distinct ones without their
    figures, and a checksum of all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sums of what cannot be
        said = [answer(lambda act=act: "; ".join(act())) for act in changed]
    faults = [text for text in said if text != "''" and "checksum" not in text]
    kinds = dict.fromkeys("".join(c for c in text if not c.isdigit())[:70] for text in faults)
    marks = "".join(
        ("." if text == "''" else "k") if text not in faults else "R" if "Error:" in text else str(text.count(";") + 1)
        for text in said
    )
    return {"outcomes": marks, "said": " | ".join(kinds)[:300], "check": checksum("\n".join(said))}


@pytest.mark.parametrize(
    ("table", "column"),
    [(t.name, c.name) for t in TABLES.values() for c in t.columns if c.dtype != "str"],
    ids=lambda name: name,
)
def test_every_cell_changed(table: str, column: str, golden: Golden) -> None:
    """Row by row one less and one more, then the first as small and as large as a file may have it, and beyond."""
    (kind,) = (c for c in TABLES[table].columns if c.name == column)
    values = tight()[table][column]

    def changed(row: int, value: Any) -> Callable[[], list[str]]:
        tables = {**tight(), table: {**tight()[table], column: [*values[:row], value, *values[row + 1 :]]}}
        return lambda: check(Trace({**META, "oom": False}, tables))

    if kind.dtype == "bool":
        golden(outcomes([changed(row, not value) for row, value in enumerate(values)]))
        return
    tried = [changed(row, value + by) for row, value in enumerate(values) for by in (-1, 1)]
    least = 0 if kind.least is None else kind.least
    ends = [least - 1, least] + ([BELOW - 1, BELOW] if kind.dtype == "i8" else [])
    golden(outcomes(tried + [changed(0, end) for end in ends]))


FOLDED_TABLES: dict[str, tuple[dict[str, Any], dict[str, tuple[str, ...]]]] = {
    "instances": ({
        "parent": [-1, 0], "count": [3, 2], "period": [100, 20], "start": [0, 10, 30], "dur": [10, 20, 0],
        "repeat": [-1, 0, 1], "segment": [0, 1, 2], "process": [0, 2, 2], "number": [0, 1, 2],
        "micro_batch": [-1, 0, 0], "iteration": [-1, 0, 0], "of": [0, 2, 2], "own": [0, 2, 1], "replica": [0, 1, 1],
        "ipu": [0, 4, 6], "micro_batch_steps": [[0, 0], [1, 0], [2, 1]], "iteration_steps": [[0, 0], [1, 0], [0, 1]],
    }, {}),
    "transfers": ({
        "parent": [-1], "count": [4], "period": [7], "start": [5, 9], "dur": [3, 0], "repeat": [0, -1],
        "template": [0, 1], "bytes": [64, 8], "op_id": [2, -1], "kind": [0, 1], "owner": [0, 0], "number": [0, 0],
        "first": [0, 1], "sends": [2, 1], "rank": [1, 0], "ipu": [8, 9],
        "link_first": [0, 2], "links": [2, 1], "link_id": [3, 4, 5],
    }, {"kinds": ("p2p", "stream")}),
    "host_events": ({
        "parent": [-1], "count": [2], "period": [50], "start": [0, 10, 10], "dur": [10, 5, 0], "repeat": [-1, 0, 0],
        "line": [0, 1, 2], "order": [-1, 1, 0],
    }, {"labels": ("session.run", "prepare b", "handle a")}),
    "code": ({
        "op_id": [-1, 3], "category": [1, 0], "ipu": [0, 1], "first": [1, 0], "runs": [1, 2],
        "tile_from": [0, 4], "tile_to": [2, 5], "bytes": [8, 12],
    }, {"categories": ("stack", "vertexCode")}),
    "variables": ({
        "name": [0, 1], "op_id": [-1, 3], "category": [0, 0], "dtype": [0, 0], "ipu": [0, 1], "always_live": [1, 0],
        "location": [0, 0], "class_id": [0, 1], "first": [1, 0], "runs": [1, 2], "tile_from": [0, 4],
        "tile_to": [2, 5], "bytes": [8, 12],
    }, {"names": ("a", "b"), "categories": ("constant",), "dtypes": ("float32",), "locations": ("tile",)}),
}  # fmt: skip


def said(table: FoldedTable, window: tuple[int, int] | None = None) -> list[str]:
    """All that a folded table says."""
    found = {k: v.strings() if isinstance(v, Words) else v for k, v in table.columns(window).items()}
    more = {name: getattr(table, name) for name in ("times", "members", "ends") if hasattr(table, name)}
    lines = digest.lines({"rows": table.rows, **found, **more})
    if hasattr(table, "repeats"):
        lines += [str(tuple(one)) for one in table.repeats()]
    return lines


@pytest.mark.parametrize("table", FOLDED)
def test_a_folded_table(table: str, golden: Golden) -> None:
    own = FOLDED[table](*FOLDED_TABLES[table])
    lines = said(own)
    for window in ((0, 10), (10, 12), (30, 31), (10, 11), (300, 400)):
        lines += [f"-- {window}", *said(own, window)]
    if isinstance(own, FoldedInstances):
        lines += ["-- alone", *said(own.alone())]
    if table == "transfers":
        lines += ["-- over links of IPU 8", *said(own.over_links_of(np.array([8])))]
    golden(lines)


@pytest.mark.parametrize(
    ("table", "array"), [(t, a) for t, (arrays, _) in FOLDED_TABLES.items() for a in arrays], ids=lambda name: name
)
def test_every_folded_array_changed(table: str, array: str, golden: Golden) -> None:
    """Each number one less, one more and too large; the array gone, longer, of another kind."""
    arrays, words = FOLDED_TABLES[table]
    values = np.array(arrays[array], dtype=np.int64)

    def changed(value: Any) -> Callable[[], list[str]]:
        own = {name: given for name, given in arrays.items() if name != array}
        if value is not None:
            own[array] = value
        return lambda: [f"checksum {checksum(chr(10).join(said(FOLDED[table](own, words))))}"]

    def cell(place: int, value: int) -> np.ndarray:
        changed = values.copy()
        changed.flat[place] = value
        return changed

    near = [cell(n, int(value) + by) for n, value in enumerate(values.flat) for by in (-1, 1)]
    far = [cell(0, value) for value in (BELOW, -BELOW, -BELOW + 1)]
    golden(outcomes([changed(v) for v in (*near, *far, None, np.append(values, values[-1:], 0), values[:-1],
                                              values[None], values * 1.0, values.astype(np.uint8))]))  # fmt: skip


@cache
def known(name: str) -> Trace:
    """A kept trace of a real program, or the tight one."""
    return Trace(META, tight()) if name == "tight" else Trace.load(HERE / "report" / f"{name}.ipt")


def windows(trace: Trace) -> list[tuple[int, int]]:
    begin, end = fold.span(trace)
    return [(begin, begin + (end - begin) // n) for n in (3, 17)] + [(begin + 5 * (end - begin) // 6, end)]


def rows_of(trace: Trace) -> dict[str, int]:
    return {name: trace.rows(name) for name in TABLES}


QUESTIONS: dict[str, Callable[[Trace], Any]] = {
    "rows": lambda t: {"rows": rows_of(t), "meta": t.meta, "class": rows_of(t.of_each_class()), "check": check(t)},
    "windows": lambda t: [
        {"window": str(w), "count": fold.slice_count(t, w), "rows": rows_of(t.within(w)), "slices": t.expand(w)}
        for w in windows(t)
    ],
    "fitting": lambda t: [str((n, fold.fitting_window(t, n))) for n in (1, 2, 10, 50, 10**6)],
    "totals": lambda t: {"span": fold.span(t), "totals": t.totals(), "works": fold.working_cycles(t)},
    "operations": lambda t: t.operations(),
    "operations-by-ipu": lambda t: t.operations_by_ipu(),
    "summary": lambda t: {key: value for key, value in t.summary().items() if key != "ipuperf_version"},
    "figures": lambda t: {" / ".join(key): value for key, value in figures(t).items()},
    "html": lambda t: t._repr_html_().replace("<t", "\n<t").splitlines(),
    "repeats": lambda t: {
        "replicas": {str(k): v for k, v in t.replicas.items()},
        "repeats": [str(tuple(one)) for one in t.repeats],
    },
}


ASKED = [(name, question) for name in ("tight", "loop", "sharded") for question in QUESTIONS]
ASKED.remove(("sharded", "windows"))  # much, and nothing new


@pytest.mark.parametrize(("name", "question"), ASKED, ids=lambda word: word)
def test_every_question(name: str, question: str, golden: Golden) -> None:
    trace = known(name)
    with mock.patch.dict(trace.meta, {"ipuperf_version": "1.0"}):
        golden(digest.lines(QUESTIONS[question](trace)))


def test_schema_and_units(golden: Golden) -> None:
    least = [[c.least for c in table.columns] for table in TABLES.values()]
    required = [table.name for table in TABLES.values() if table.required]
    table = [" | ".join(row) for row in units().itertuples(index=False, name=None)]
    assert sum(map(len, least)) == len(table)
    golden([f"required: {required}", *map(str, least), *table])


NOTHING = {"steps": {}, "instances": {}}
CALLS = """
[Trace({**META, "clock_hz": v}, NOTHING).meta["clock_hz"] for v in (1, 0.5, 1e9)]
Trace({**META, "clock_hz": True}, NOTHING)
Trace({**META, "clock_hz": -1}, NOTHING)
Trace({**META, "clock_hz": "1"}, NOTHING)
meta({"peak_flops_per_cycle": {"float16": 1}})
meta({"peak_flops_per_cycle": {"float16": 0}})
meta({"peak_flops_per_cycle": {"float16": True}})
meta({"peak_flops_per_cycle": [1]})
meta({"warnings": ("a",)})
meta({"warnings": [1]})
meta({"assumptions": "a"})
meta({"oom": 1})
meta({"oom": True})
meta({"program": None})
meta({"schema_version": 5})
meta({"schema_version": 4})
meta({"more": {1: np.float32(0.5), "a": (np.int8(3), None, [True])}})
meta({"more": float("nan")})
meta({"more": {"a": [0, {1}]}})
coerced("i4", [2 ** 31 - 1, -2 ** 31]), coerced("i4", []), coerced("i8", np.array([3], np.uint8)), coerced("i4", np.array([3]))
coerced("i4", [2 ** 31])
coerced("i4", [-2 ** 31 - 1])
coerced("i8", np.array([2 ** 63], np.uint64))
coerced("i8", [1.0])
coerced("i8", [True])
coerced("f8", [1, 2.5]), coerced("f8", np.array([1], np.uint8)), coerced("f8", [])
coerced("f8", [1, float("inf")])
coerced("f8", [True])
coerced("bool", [True, False]), coerced("bool", [])
coerced("bool", [1, 0])
coerced("str", ["a", np.str_("b")]), coerced("str", ()), coerced("str", Words(("a", "b"), np.array([1, 0])))
coerced("str", ["a", 3])
coerced("str", [None])
coerced("str", "ab")
coerced("str", [["a"]])
coerced("str", Words(("a",), np.array([1])))
coerced("str", Words(("a",), np.array([-1])))
coerced("str", Words(("a", 3), np.array([0])))
coerced("str", Words((), np.array([], int)))
coerced("i8", Words(("a",), np.array([0])))
coerced("i8", np.zeros((1, 1), int))
coerced("i8", 3)
Words.of(["b", "a", "b"]).words, Words.of(["b", "a", "b"]).codes.tolist(), len(Words.of([]))
columns.code_of(np.array(["b", "a"]), ("a", "b")).tolist()
columns.code_of(np.array(["c"], object), ("a", "b"))
columns.lookup(np.array([5, 1, 9, 0]), np.array([9, 1, 5]), np.array([90, 10, 50]), -1).tolist()
columns.lookup(np.array([5, 1]), np.array([], int), np.array([], int), -1).tolist()
Trace(META, {"steps": {}})
Trace(META, {**NOTHING, "ops": {"op_id": []}})
Trace(META, {**NOTHING, "loops": {"loop": [0], "parent": [-1], "count": [2 ** 62 - 1], "period": [0]}}).loops.inner.tolist()
Trace(META, {**NOTHING, "loops": {"loop": [0], "parent": [-1], "count": [2 ** 62], "period": [0]}})
Trace(META, {**NOTHING, "loops": {"loop": [0], "parent": [-1], "count": [2], "period": [2 ** 62 - 1]}}).loops.rest.tolist()
Trace(META, {**NOTHING, "loops": {"loop": [0], "parent": [-1], "count": [2], "period": [2 ** 62]}})
Trace(META, {**NOTHING, "loops": {"loop": [0], "parent": [-1], "count": [1], "period": [2 ** 62]}}).loops.rest.tolist()
Trace(META, {**NOTHING, "loops": {"loop": [-1], "parent": [-1], "count": [1], "period": [1]}})
Trace(META, {**NOTHING, "instances": {**tight()["instances"], "instance": [-1, 0, 1]}}).rows("instances")
Trace(META, {**NOTHING, "runs": {"run": [2, 1, 2], "name": ["a"] * 3, "start": [0] * 3, "dur": [0] * 3}})
Trace(META, tight()) == Trace(META, tight()), Trace(META, tight()) == Trace({**META, "program": "p"}, tight()), Trace(META, tight()) == 3
Trace(META, tight()) == Trace(META, {**tight(), "runs": {"run": [0], "name": ["r"], "start": [0], "dur": [33]}})
Trace(META, tight()).seconds(3), Trace(META, tight()).seconds([1, 2]).tolist(), Trace(META, tight()).seconds(np.int64(7))
[Trace({**META, "bytes_per_tile": n}, tight()).meta["oom"] for n in (99, 100)]
Trace(META, NOTHING).replicas, Trace(META, NOTHING).repeats, fold.span(Trace(META, NOTHING)), fold.fitting_window(Trace(META, NOTHING), 0)
[len(list(fold.slice_batches(Trace(META, tight()), batch=n))) for n in (1, 2, 5, 6, 7)]
[fold.fitting_window(Trace(META, tight()), n) for n in range(8)]
expanded(None, most=7)
expanded(None, most=6)
expanded((0, 24), most=6)
expanded((0, 24), most=4)
expanded((0, 24), kinds=("idle",), most=1)
expanded((0, 0))
expanded((1, 0))
expanded((0, 1, 2))
expanded({0, 1})
expanded((0, True))
expanded((0.5, np.int8(3)))
expanded((14.5, 15.5)), expanded((15.0, 20.0)), expanded((19.5, float("inf"))), expanded((float("-inf"), 0.5))
expanded(np.array([0, 3]))
[fold.slice_count(Trace(META, tight()), w) for w in ((14.5, 15.5), (0, float("inf")), np.array([0, 20]), [15, 20])]
expanded(None, clip=True)
list(Trace(META, tight()).diff(Trace({**META, "clock_hz": 2}, tight())).itertuples(index=False, name=None))
[len(Trace(META, tight()).diff(Trace({**META, "clock_hz": 10 ** 9 // 2}, tight()), r)) for r in (0, 0.49, 0.5, 0.51)]
Trace(META, tight()).diff(Trace(META, tight()), -0.1)
ranged("variables", 1, 1), ranged("variables", 1, 0), ranged("tile_runs", 1, 0), ranged("variables", 2, 1)
shown_ipus(8)
shown_ipus(9)
narrow([0, 255]), narrow([0, 256]), narrow([-1, 127]), narrow([-1, 128]), narrow([-129]), narrow([]), narrow([0, 2 ** 63 - 1]), narrow([-1, 2 ** 63 - 1])
sizes(), loaded(-1)
loaded(0)
"""  # noqa: E501


def _coerced(dtype: str, values: Any) -> list[Any]:
    found = column_checks.coerce_column("t", TABLES["steps"].columns[0].__class__("c", dtype, "u", "m"), values)
    array = found.strings() if isinstance(found, Words) else found
    return [array.tolist(), str(array.dtype), array.flags.writeable]


def _expanded(window: Any, most: int = 10**6, **options: Any) -> list[Any]:
    with mock.patch.object(fold, "MOST_SLICES", most):
        return Trace(META, tight()).expand(window, **options)[["start", "dur", "kind"]].values.tolist()


def _ranged(table: str, first: int, last: int) -> list[str]:
    """What is said of these tiles."""
    own = {"tile_from": [first, *tight()[table]["tile_from"][1:]], "tile_to": [last, *tight()[table]["tile_to"][1:]]}
    return check(Trace(META, {**tight(), table: {**tight()[table], **own}}))


def _shown_ipus(count: int) -> list[int]:
    """Rows and what is left out of a notebook's table for so many IPUs."""
    instances = [(n, 3, n, 0, -1, -1, 0, 8, 0) for n in range(count)]
    given = {c: [row[n] for row in instances] for n, c in enumerate(TABLES["instances"].column_names)}
    text = Trace({**META, "num_ipus": count}, {**tight(), "instances": given})._repr_html_()
    assert MOST_IPUS == 8
    return [text.count("<tr><th>"), text.count("1 more IPUs are in")]


def _loaded(tmp_path: Path, less: int) -> list[Any]:
    """A file read with as many bytes as it needs, and some less."""
    Trace(META, tight()).save(path := tmp_path / "x.ipt")
    taken: list[int] = []
    with mock.patch.object(store._Budget, "take", lambda self, size, *_: taken.append(size)):
        store.load(path)
    return [store.load(path, sum(taken) - 1 - less)[0]["machine"]]


@together(listed(CALLS))
def test_every_answer(cases: list[str], golden: Golden, tmp_path: Path) -> None:
    names: dict[str, Any] = {"Trace": Trace, "META": META, "NOTHING": NOTHING, "np": np, "Words": Words, "fold": fold}
    names |= {"tight": tight, "columns": column_checks, "coerced": _coerced, "expanded": _expanded, "ranged": _ranged}
    names |= {"shown_ipus": _shown_ipus}
    names |= {"narrow": lambda values: str(store._narrow(np.array(values, dtype=np.int64)).dtype)}
    names |= {"loaded": lambda less: _loaded(tmp_path, less)}
    names |= {"sizes": lambda: [store.MOST_BYTES, store._MOST_META_BYTES]}
    names |= {"meta": lambda given: {k: v for k, v in Trace({**META, **given}, NOTHING).meta.items() if k in given}}
    golden({case: asked(case, names) for case in cases})


@pytest.mark.parametrize("key", ["tiles_per_ipu", "bytes_per_tile", "num_ipus", "replicas", "prefetch_depth"])
def test_limits_of_counts(key: str, golden: Golden) -> None:
    most = {"tiles_per_ipu": 2**20, "bytes_per_tile": 2**40, "prefetch_depth": 2**31}.get(key, 2**16)
    tried = (-1, 0, 1, most, most + 1, True, 1.0)
    said = [answer(lambda v=v: Trace({**META, key: v}, NOTHING).meta[key]) for v in tried]
    golden({"answers": " | ".join(said)})
