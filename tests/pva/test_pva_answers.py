"""Everything that libpva's objects say of kept traces and of a small one: ``tests/golden/libpva``."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import digest
import pytest
from answers import answer
from rows import Golden

from ipuperf import pva
from ipuperf.pva.absent import ReportPart
from ipuperf.trace import TABLES, Trace

HERE = Path(__file__).parents[1] / "golden"
META = {"machine": "m", "clock_hz": 10**9, "tiles_per_ipu": 3, "bytes_per_tile": 100, "num_ipus": 4, "replicas": 2}
SMALL: Mapping[str, list[tuple[Any, ...]]] = {
    "ops": [(5, "s/x", "X", "main", "fwd", 7, "x.py:12", "float16", "s"),
            (6, "s/y", "Y", "sub", "fwd", 1, "x.py", "", "s")],
    "programs": [(3, 7, 1, "DoExchange", "y", 6, 1), (1, 7, 0, "OnTileExecute", "x", 5, 0),
                 (7, 9, 0, "Sequence", "sub", -1, -1), (9, -1, 0, "Sequence", "main", -1, -1),
                 (4, 9, 1, "Call", "sub", -1, -1), (8, 7, 2, "OnTileExecute", "x2", 5, -1)],
    "steps": [(0, 0, 1, 5, "compute", 0, 10, 5.0, 2, 1, 0, 0, 8, 0, -1),
              (0, 1, 3, 6, "exchange", 10, 5, 2.5, 1, 0, 3, 4, 0, 0, 0),
              (0, 2, 8, 5, "compute", 0, 6, 0.0, 0, -1, 0, 0, 2, 1, -1),
              (2, 0, -1, -1, "idle", 0, 24, 0.0, 0, -1, 0, 0, 0, 0, -1),
              (2, 1, 3, 6, "exchange", 24, 0, 0.0, 3, -1, 1, 2, 0, 0, -1)],
    "loops": [(0, -1, 2, 5)],
    "instances": [(0, 0, 0, 0, 0, 0, 4, 24, 0), (1, 0, 2, 1, 0, 0, 4, 24, 0), (2, 2, 1, 0, -1, -1, 0, 24, 0),
                  (3, 0, 3, 1, 1, 0, 40, 24, 6)],
    "tile_runs": [(0, 0, 0, 1, 10, 1), (0, 0, 2, 3, 5, 2)],
    "tile_memory": [(0, 0, "variableAlwaysLive", 10), (0, 0, "gaps", 3), (0, 2, "variableNotAlwaysLive", 7),
                    (0, 0, "vertexCode", 5), (0, 0, "vertexCode", 6), (1, 1, "stack", 9), (1, 1, "controlCode", 1)],
    "variables": [(0, "w", -1, "weight", "float16", 0, 0, 2, 20, True, "tile", 0),
                  (1, "y", 5, "output", "float16", 0, 0, 1, 40, False, "tile", 1),
                  (1, "y", 5, "output", "float16", 0, 1, 3, 30, False, "tile", 1),
                  (2, "z", 5, "output", "float16", 1, 0, 1, 80, False, "tile", 2),
                  (3, "v", -1, "weight", "float16", 1, 0, 3, 90, True, "tile", 0),
                  (4, "r", -1, "weight", "float16", 0, 0, 0, 500, True, "remote", 0)],
    "live_intervals": [(1, 0, 1), (1, 2, 3), (2, 1, 2), (0, 0, 3)],
    "liveness": [(0, 0, "x", 20, 70, 60, 0), (0, 1, "y", 20, 0, 20, 0), (0, 2, "x", 20, 70, 60, 1),
                 (1, 0, "x", 90, 0, 30, 0), (1, 1, "z", 90, 80, 110, 0)],
    "runs": [(0, "first", 0, 30), (6, "second", 40, 24)],
}  # fmt: skip


@cache
def report_of(name: str) -> pva.Report:
    if name != "small":
        return pva.openReport(HERE / "report" / f"{name}.ipt")
    rows = {t: {c: [row[n] for row in r] for n, c in enumerate(TABLES[t].column_names)} for t, r in SMALL.items()}
    return pva.Report(Trace(META, rows))


def public(part: ReportPart) -> dict[str, Any]:
    """What an object says, parts of it within it; programs by name."""
    names = [n for n in dir(part) if not n.startswith("_") and n != "ABSENT" and n[0].islower()]
    return {name: plain(getattr(part, name)) for name in names if not callable(getattr(part, name))}


def plain(value: Any) -> Any:
    if isinstance(value, pva.Program):
        return repr(value)
    if isinstance(value, ReportPart):
        return public(value)
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def tiles(report: pva.Report) -> Any:
    compilation = report.compilation
    rows = [public(tile.memory) for tile in compilation.tiles]
    categories = {c: [row["category"][c]["total"] for row in rows] for c in rows[0]["category"]}
    totals = {key: [row["total"][key] for row in rows] for key in rows[0]["total"]}
    sizes = {key: [row[key] for row in rows] for key in ("alwaysLiveBytes", "notAlwaysLiveBytes")}
    return {**totals, **sizes, **categories, "ipus": [len(ipu.tiles) for ipu in compilation.ipus]}


def listed(variables: list[Any]) -> str:
    return ", ".join(f"{variable.name} {variable.size}" for variable in variables)


def liveness(report: pva.Report) -> Iterator[str]:
    compilation = report.compilation
    some = (0, 1, 2, compilation.target.tilesPerIpu + 1)
    yield f"always live: {listed(compilation.alwaysLiveVariables)}"
    yield from (f"always on tile {tile}: {listed(compilation.alwaysLiveVariablesForTile(tile))}" for tile in some)
    ipus = range(len(compilation.ipus) + 1)
    for number, step in enumerate(compilation.livenessProgramSteps[:6]):
        yield f"step {number}: {answer(lambda step=step: step.program.name)}"
        yield answer(lambda step=step: public(step.notAlwaysLiveMemory))
        asked = [(step.notAlwaysLiveMemoryForIpu, ipu) for ipu in ipus]
        asked += [(step.notAlwaysLiveMemoryForTile, tile) for tile in some]
        yield from (answer(lambda ask=ask, place=place: public(ask(place))) for ask, place in asked)


def execution(report: pva.Report) -> Iterator[str]:
    said = report.execution
    yield f"total {said.totalCycles.total}, {len(said.steps)} steps"
    for run in said.runs:
        yield f"{run.name} {public(run.microseconds)} {len(run.steps)} {[s.program.name for s in run.steps[:5]]}"
    yield from (repr(said.steps[n].program) for n in (0, -1))
    yield answer(lambda: said.steps[len(said.steps)])
    for step in said.steps:
        cycles = getattr(step, "cyclesByTile", [])
        yield f"{step.program!r} {plain(step.computeSets)} {cycles}: {plain(step.ipus)}"


def absent(report: pva.Report) -> Iterator[str]:
    compilation, steps = report.compilation, report.execution.steps
    context = pva.OperationAnalysis(report).operations[0]
    computes = next(program for program in compilation.programs if program.type.name == "OnTileExecute")
    own = steps[0].ipus[0]
    for part in (
        report, report.poplarVersion, compilation, compilation.target, compilation.graph, compilation.tiles[0].memory,
        compilation.tiles[0].memory.category, compilation.tiles[0].memory.category.stack, computes.computeset,
        computes.computeset.vertices[0], computes.computeset.vertices[0].type, computes, compilation.programs[0],
        report.execution, report.execution.totalCycles, steps[-1], own, own.activeCycles, own.activeCycles.cyclesTo,
        context, context.debugContext, context.debugContext.location, compilation.livenessProgramSteps[0],
    ):  # fmt: skip
        for name in (*type(part).ABSENT, "nothing", "__nothing__"):
            yield answer(lambda part=part, name=name: getattr(part, name))


PARTS: Mapping[str, Callable[[pva.Report], Any]] = {
    "target": lambda r: public(r.compilation.target) | {"version": r.poplarVersion.string.partition(" ")[0]},
    "programs": lambda r: [f"{p!r} {p.children} {public(p).get('computeset')}" for p in r.compilation.programs],
    "compilation": lambda r: {"sets": plain(r.compilation.computeSets), "graph": public(r.compilation.graph)},
    "tiles": tiles,
    "liveness": lambda r: list(liveness(r)),
    "execution": lambda r: list(execution(r)),
    "operations": lambda r: [str(public(o) | {"programs": o.programs()}) for o in pva.OperationAnalysis(r).operations],
    "absent": lambda r: list(absent(r)),
}


ASKED = [("small", part) for part in PARTS]
ASKED += [("loop", "execution"), *(("sharded", part) for part in ("target", "programs", "liveness", "operations"))]


@pytest.mark.parametrize(("name", "part"), ASKED, ids=lambda word: word)
def test_every_part(name: str, part: str, golden: Golden) -> None:
    golden(digest.lines(PARTS[part](report_of(name))))


def test_enumerations(golden: Golden) -> None:
    target = [f"{kind!r} {int(kind)}" for kind in pva.Target.Type.__members__.values()]
    kinds = [f"{kind.name} {kind.value}" for kind in pva.Program.Type]
    refused = [answer(lambda name=name: getattr(pva, name)) for name in ("openTrace", "BriefLoweredVariable", "x")]
    golden([*target, *kinds, *refused])
