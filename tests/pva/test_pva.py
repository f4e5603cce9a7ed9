"""Scripts for libpva on ``ipuperf.pva``: its figures are those of the tables, what is not there says so."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from ipuperf import pva
from ipuperf.runtime.install import install, uninstall
from ipuperf.trace import Trace, TraceError


def program(pipelined: bool) -> Trace:
    """A product on one IPU, or two of them on two."""
    from ipuperf import popxl
    from ipuperf.popxl import ops

    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.ones((16, 32), np.float32), name="x")
        w = popxl.variable(np.ones((32, 48), np.float32), name="w")
        y = ops.relu(ops.matmul(x, w))
        if pipelined:
            with popxl.ipu(1):
                y = ops.exp(ops.ipu_copy(y, 1))
        out = popxl.d2h_stream(y.shape, y.dtype)
        with popxl.ipu(int(pipelined)):
            ops.host_store(out, y)
    return popxl.Session(ir, "ipu_hw").executable.trace


@pytest.fixture(scope="module", params=[False, True], ids=["one IPU", "two IPUs"])
def trace(request: pytest.FixtureRequest) -> Trace:
    return program(request.param)


@pytest.fixture
def report(trace: Trace, tmp_path: Path) -> pva.Report:
    trace.save(tmp_path / "trace.ipt")
    return pva.openReport(tmp_path / "profile.pop")  # where a script looks for it


def test_the_target_is_that_of_the_meta(report: pva.Report, trace: Trace) -> None:
    target, meta = report.compilation.target, trace.meta
    assert (target.numIPUs, target.tilesPerIpu, target.numReplicas) == (meta["num_ipus"], 1472, 1)
    assert target.numTiles == 1472 * target.numIPUs == target.tilesPerReplica
    assert target.totalMemory == target.numTiles * 638_976 == target.memoryPerReplica
    assert target.bytesPerIPU == 1472 * target.bytesPerTile
    assert target.clockFrequency == meta["clock_hz"]
    assert target.type == pva.Target.Type.IpuModel
    assert report.poplarVersion.string == f"ipuperf {meta['ipuperf_version']}, no Poplar"


def test_cycles_are_those_of_the_trace(report: pva.Report, trace: Trace) -> None:
    assert report.execution.totalCycles.total == trace.summary()["total_cycles"]
    expected = trace.expand()
    expected = expected[expected["program_id"] >= 0]
    for ipu in range(trace.meta["num_ipus"]):
        own = expected[expected["ipu"] == ipu]
        assert sum(step.ipus[ipu].cycles for step in report.execution.steps) == own["dur"].sum()
        assert sum(step.ipus[ipu].dataIn for step in report.execution.steps) == own["bytes_in"].sum()
        assert sum(step.ipus[ipu].dataOut for step in report.execution.steps) == own["bytes_out"].sum()
    assert len(report.execution.steps) == len(expected)
    starts = [step.ipus[0].activeCycles.cyclesFrom.min for step in report.execution.steps]
    assert starts == sorted(expected["start"])
    (run,) = report.execution.runs
    assert len(run.steps) == len(expected)
    assert run.microseconds.end - run.microseconds.start == pytest.approx(
        1e6 * trace.seconds(trace.table("runs").dur[0])
    )


def test_balance_is_average_over_slowest(report: pva.Report, trace: Trace) -> None:
    steps, programs = trace.table("steps"), trace.table("programs").set_index("program_id")
    row = steps[steps["kind"] == "compute"].iloc[0]
    name = programs.name[row.program_id]
    step = next(s for s in report.execution.steps if s.program.name == name)
    mine = step.ipus[0]
    assert mine.tileBalance == row.dur_mean / row.dur
    assert mine.activeTileBalance == pytest.approx(row.dur_mean * 1472 / row.active_tiles / row.dur)
    assert [compute_set.name for compute_set in step.computeSets] == [name]
    assert mine.activeCycles.cyclesTo.max - mine.activeCycles.cyclesFrom.max == mine.cycles == row.dur


def test_cycles_by_tile_where_the_trace_has_them(tmp_path: Path) -> None:
    meta = {"machine": "made up", "clock_hz": 10**9, "tiles_per_ipu": 4, "bytes_per_tile": 100, "num_ipus": 2}
    zero = {"bytes_in": [0], "bytes_out": [0], "flops": [0], "lane": [0], "loop": [-1]}
    steps = {"segment": [0], "seq": [0], "program_id": [0], "op_id": [-1], "kind": ["compute"], "rel_start": [0]}
    steps |= {"dur": [9], "dur_mean": [5.0], "active_tiles": [3], "argmax_tile": [2], **zero}
    instances = {"instance": [0], "segment": [0], "ipu": [1], "replica": [0], "micro_batch": [-1]}
    instances |= {"iteration": [-1], "start": [7], "dur": [9], "parent": [0]}
    programs = {"program_id": [0], "parent": [-1], "order": [0], "type": ["OnTileExecute"], "name": ["v"]}
    programs |= {"op_id": [-1], "ipu": [1]}
    runs = {"segment": [0, 0], "seq": [0, 0], "tile_from": [0, 2], "tile_to": [2, 3], "cycles": [5, 9], "bytes": [0, 0]}
    made = Trace(meta, {"steps": steps, "instances": instances, "programs": programs, "tile_runs": runs})
    made.save(tmp_path / "x.ipt")
    report = pva.openReport(tmp_path / "x.ipt")
    (step,) = report.execution.steps
    assert step.cyclesByTile == [0, 0, 0, 0, 5, 5, 9, 0]
    assert [ipu.cycles for ipu in step.ipus] == [0, 9]
    assert step.ipus[0].activeCycles.cyclesFrom.max == step.ipus[0].activeCycles.cyclesTo.max == 7
    assert step.ipus[1].activeTileBalance == pytest.approx(20 / 27)
    with pytest.raises(AttributeError, match=r"Compilation.tiles.*the trace says nothing about memory"):
        _ = report.compilation.tiles


def test_bytes_are_those_of_the_tables(report: pva.Report, trace: Trace) -> None:
    memory = trace.table("tile_memory")
    memory["place"] = memory["ipu"] * 1472 + memory["tile"]
    tiles = report.compilation.tiles
    assert len(tiles) == 1472 * trace.meta["num_ipus"]
    total = memory.groupby("place").bytes.sum().reindex(range(len(tiles)), fill_value=0)
    gaps = memory[memory["category"] == "gaps"].groupby("place").bytes.sum().reindex(range(len(tiles)), fill_value=0)
    assert [tile.memory.total.includingGaps for tile in tiles] == total.tolist()
    assert [tile.memory.total.excludingGaps for tile in tiles] == (total - gaps).tolist()
    code = memory[memory["category"] == "vertexCode"].bytes.sum()
    assert sum(tile.memory.category.vertexCode.total for tile in tiles) == code > 0
    for ipu, compiled in enumerate(report.compilation.ipus):
        liveness = trace.table("liveness")
        always = liveness["always_live"][liveness["ipu"] == ipu].max()
        assert sum(tile.memory.alwaysLiveBytes for tile in compiled.tiles) == always


def test_liveness_names_its_variables(report: pva.Report, trace: Trace) -> None:
    liveness = trace.table("liveness")
    steps = report.compilation.livenessProgramSteps
    assert len(steps) == liveness["step"].max() + 1
    for row in liveness.itertuples():
        memory = steps[row.step].notAlwaysLiveMemoryForIpu(row.ipu)
        assert memory.bytes == row.not_always_live == sum(variable.size for variable in memory.variables)
    at = int(liveness["not_always_live"].idxmax())
    ipu, step = int(liveness["ipu"][at]), steps[int(liveness["step"][at])]
    tiles = [step.notAlwaysLiveMemoryForTile(ipu * 1472 + tile).bytes for tile in range(1472)]
    assert sum(tiles) == liveness["not_always_live"][at]
    if trace.meta["num_ipus"] == 1:
        assert [s.program.name for s in steps] == liveness["program"].tolist()
        assert max(s.notAlwaysLiveMemory.bytes for s in steps) == liveness["not_always_live"].max()
        return
    with pytest.raises(AttributeError, match=r"steps of the 2 IPUs do not run together.*use notAlwaysLiveMemoryForIpu"):
        _ = steps[1].notAlwaysLiveMemory
    with pytest.raises(IndexError, match="IPU 2"):
        steps[1].notAlwaysLiveMemoryForIpu(2)


class Tree(pva.ProgramVisitor):
    """Names of compute sets, and how deep the tree goes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def visitSequence(self, program: pva.Program) -> None:
        for child in program.children:
            child.accept(self)

    def visitOnTileExecute(self, program: pva.Program) -> None:
        assert program.type == pva.Program.Type.OnTileExecute
        assert [vertex.type.name for vertex in program.computeset.vertices] == [program.name]
        self.names.append(program.name)


def test_a_visitor_goes_through_the_tree(report: pva.Report, trace: Trace) -> None:
    tree = Tree()
    table = trace.table("programs")
    inside = set(table["program_id"][table["parent"] >= 0])
    for program in report.compilation.programs:
        if program._id not in inside:
            program.accept(tree)
    expected = table[table["type"] == "OnTileExecute"]["name"].tolist()
    assert sorted(tree.names) == sorted(expected)
    assert report.compilation.graph.numComputeSets == len(expected) == len(report.compilation.computeSets)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        ("compilation.graph.numVertices", "numVertices: not in a trace.*there is: numComputeSets"),
        ("compilation.tiles[0].memory.vertices", "category.vertexCode.total"),
        ("compilation.tiles[0].memory.category.constantes", "there is:.*constant"),
        ("compilation.programs[0].vars", "livenessProgramSteps"),
        ("compilation.target.architecture", "report.trace.meta"),
        ("execution.steps[0].cyclesByTile", "ipus.i..tileBalance"),
        ("execution.steps[0].ipus[0].activeCycles.cyclesTo.min", "slowest"),
        ("poplarVersion.major", "no Poplar"),
        ("execution.blocks", "every execution"),
        ("version.major", "schema_version"),
        ("instrumentationSettings.compute", "nothing is instrumented"),
        ("listPrintLength(5)", "lists here are Python's"),
    ],
)
def test_what_is_not_there_says_what_is(report: pva.Report, ask: str, says: str) -> None:
    with pytest.raises(AttributeError, match=says):
        eval(f"report.{ask}", {"report": report})


def test_operations_know_their_lines_and_programs(report: pva.Report, trace: Trace) -> None:
    ops, programs = trace.table("ops"), trace.table("programs")
    analysis = pva.OperationAnalysis(report)
    assert [operation.name for operation in analysis.operations] == ops["type"].tolist()
    for operation, row in zip(analysis.operations, ops.itertuples(), strict=True):
        context = operation.debugContext
        assert (context.name, context.layer) == (row.name, row.module)
        assert f"{context.location.fileName}:{context.location.lineNumber}" == row.line
        own = programs[programs["op_id"] == row.op_id]
        assert [program.name for program in operation.programs()] == own["name"].tolist()
    (matmul,) = [operation for operation in analysis.operations if operation.name == "MatMul"]
    assert Path(matmul.debugContext.location.fileName).name == Path(__file__).name
    steps = [step for step in report.execution.steps if step.program in matmul.programs()]
    assert len(steps) == (trace.expand()["op"] == matmul.debugContext.name).sum() > 0
    with pytest.raises(AttributeError, match="told apart by their names"):
        _ = matmul.debugContext.id


class Intervals(pva.ProgramVisitor):
    """Compute and transfers of the host, as public scripts for overlapped I/O collect them."""

    def __init__(self, ipu) -> None:
        self.at = (ipu.activeCycles.cyclesFrom.max, ipu.activeCycles.cyclesTo.max)
        self.found: list[tuple[str, int, int]] = []
        super().__init__()

    def visitOnTileExecute(self, _: pva.Program) -> None:
        self.found.append(("compute", *self.at))

    def visitStreamCopyMid(self, _: pva.Program) -> None:
        self.found.append(("host_mid", *self.at))


def test_intervals_of_compute_and_transfers_are_those_of_the_slices(report: pva.Report, trace: Trace) -> None:
    found = []
    for step in report.execution.runs[0].steps:
        visitor = Intervals(step.ipus[0])
        step.program.accept(visitor)
        found += [interval for interval in visitor.found if interval[1] < interval[2]]
    slices = trace.expand().query("ipu == 0 and kind in ('compute', 'host_mid') and dur > 0")
    expected = zip(slices["kind"], slices["start"], slices["start"] + slices["dur"], strict=True)
    assert sorted(found) == sorted(expected)


def test_types_that_never_occur_compare_unequal(report: pva.Report) -> None:
    never = (pva.Program.Type.SyncAns, pva.Program.Type.Sans, pva.Program.Type.OnEveryTileSwitch)
    assert not [program for program in report.compilation.programs if program.type in never]
    for kind in pva.Program.Type:
        assert callable(getattr(pva.ProgramVisitor(), f"visit{kind.name}"))


def test_a_name_of_libpva_that_is_not_here_says_so() -> None:
    with pytest.raises(AttributeError, match=r"pva.openTrace is not in ipuperf; .*host_events.*there is: .*openReport"):
        _ = pva.openTrace
    with pytest.raises(AttributeError, match=r"pva.Nothing is not in ipuperf \(there is: "):
        _ = pva.Nothing


def test_where_a_report_is_looked_for(trace: Trace, tmp_path: Path) -> None:
    one = tmp_path / "training" / "0-session"
    one.mkdir(parents=True)
    trace.save(one / "trace.ipt")
    assert pva.openReport(str(one / "profile.pop"), str(tmp_path / "debug.cbor")).trace == trace
    for path in (one, one / "trace.ipt", one / "profile.pop", tmp_path / "training" / "profile.pop"):
        assert pva.openReport(path).trace == trace
    (tmp_path / "debug.cbor").write_bytes(b"cbor")
    with pytest.raises(TraceError, match=r"debug.cbor is a file of Poplar's.* leave it out"):
        pva.openReport(one, tmp_path / "debug.cbor")
    with pytest.raises(FileNotFoundError, match=r"profile.pop: .* has no trace.ipt of ipuperf, and none stands below"):
        pva.openReport(tmp_path / "profile.pop")
    (tmp_path / "training" / "1-session").mkdir()
    trace.save(tmp_path / "training" / "1-session" / "trace.ipt")
    with pytest.raises(FileNotFoundError, match="2 of them stand below it: .*0-session.*1-session"):
        pva.openReport(tmp_path / "training" / "profile.pop")
    (one / "profile.pop").write_bytes(b"SQLite format 3")
    with pytest.raises(TraceError, match="profile of Poplar's; ipuperf.pva reads traces of ipuperf only"):
        pva.openReport(one / "profile.pop")


def test_import_pva_finds_it() -> None:
    install(["pva"])
    try:
        assert importlib.import_module("pva") is pva
    finally:
        uninstall(["pva"])
