"""Chakra execution traces: read back, they have the counts, bytes and order that the tables of the trace have.

They are read with the classes of `mlc-chakra` where it is installed, and always with classes made here from the numbers
of the fields in the published schema.
"""

import io
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]

from ipuperf.cli import cli
from ipuperf.report import chakra, to_chakra
from ipuperf.trace import Trace, TraceError

GOLDEN = Path(__file__).parents[1] / "golden" / "report"
LOAD, STORE, COMPUTE, SEND, RECEIVE, COLLECTIVE = 2, 3, 4, 5, 6, 7
ALL_REDUCE = 0
WAITING = ("sync_external", "idle")
ON_HOST = ("host_run", "host_begin", "host_end")


def _schema() -> tuple[Any, Any]:
    """Classes of ``Node`` and ``GlobalMetadata`` with the fields of et_def.proto that are written."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="test_chakra", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> None:
        made = file.message_type.add(name=name)
        for field, number, kind, label, type_name in fields:
            made.field.add(name=field, number=number, type=kind, label=label, type_name=type_name or None)

    one, many = kinds.LABEL_OPTIONAL, kinds.LABEL_REPEATED
    message("Int32List", ("values", 1, kinds.TYPE_INT32, many, ""))
    message(
        "AttributeProto",
        ("name", 1, kinds.TYPE_STRING, one, ""),
        ("int32_val", 7, kinds.TYPE_INT32, one, ""),
        ("int32_list", 8, kinds.TYPE_MESSAGE, one, ".test_chakra.Int32List"),
        ("int64_val", 9, kinds.TYPE_INT64, one, ""),
        ("uint64_val", 13, kinds.TYPE_UINT64, one, ""),
        ("bool_val", 27, kinds.TYPE_BOOL, one, ""),
        ("string_val", 29, kinds.TYPE_STRING, one, ""),
    )
    attributes = (kinds.TYPE_MESSAGE, many, ".test_chakra.AttributeProto")
    message("GlobalMetadata", ("version", 1, kinds.TYPE_STRING, one, ""), ("attr", 2, *attributes))
    message(
        "Node",
        ("id", 1, kinds.TYPE_UINT64, one, ""),
        ("name", 2, kinds.TYPE_STRING, one, ""),
        ("type", 3, kinds.TYPE_INT32, one, ""),
        ("data_deps", 5, kinds.TYPE_UINT64, many, ""),
        ("start_time_micros", 6, kinds.TYPE_UINT64, one, ""),
        ("duration_micros", 7, kinds.TYPE_UINT64, one, ""),
        ("attr", 10, *attributes),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    node, metadata = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"test_chakra.{name}"))
        for name in ("Node", "GlobalMetadata")
    )
    return node, metadata


def _mlc_chakra() -> tuple[Any, Any]:
    schema = pytest.importorskip("chakra.schema.protobuf.et_def_pb2", reason="no mlc-chakra")
    return schema.Node, schema.GlobalMetadata


@pytest.fixture(params=[_schema, _mlc_chakra], ids=["schema", "mlc-chakra"])
def classes(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return request.param()


def _values(message: Any) -> dict[str, Any]:
    """The attributes by name, whatever their type."""
    values = {}
    for attribute in message.attr:
        ((_, value),) = [row for row in attribute.ListFields() if row[0].name not in ("name", "doc_string")] or [
            (None, 0)
        ]
        values[attribute.name] = list(value.values) if hasattr(value, "values") else value
    return values


def _messages(file: Path, classes: tuple[Any, Any]) -> Iterator[Any]:
    data, place = file.read_bytes(), 0
    for number in range(10**9):
        if place == len(data):
            return
        size, place = _DecodeVarint(data, place)
        message = classes[0 if number else 1]()
        message.ParseFromString(data[place : place + size])
        yield message
        place += size


def _read(trace: Trace, folder: Path, classes: tuple[Any, Any]) -> dict[int, list[Any]]:
    """The nodes of each IPU."""
    nodes = {}
    for ipu, file in enumerate(to_chakra(trace, folder)):
        assert file.name.endswith(f".{ipu}.et")
        metadata, *nodes[ipu] = _messages(file, classes)
        told = _values(metadata)
        assert (metadata.version, told["ipu"], told["clock_hz"]) == ("1.0.0", ipu, trace.meta["clock_hz"])
    return nodes


def _collective_ops(trace: Trace) -> set[int]:
    transfers = trace.table("transfers")
    return set(transfers[transfers.kind.isin(["all_reduce", "all_gather", "reduce_scatter"])].op_id)


def _compare(trace: Trace, nodes: dict[int, list[Any]]) -> None:
    """Counts and bytes of every IPU are those of the tables, every copy has two ends, and nodes wait for their step."""
    slices = trace.expand()
    slices = slices[~slices.kind.isin(WAITING)]
    assert sorted(nodes) == sorted(slices.ipu.unique())
    for ipu, table in slices.groupby("ipu"):
        _compare_ipu(trace, table, nodes[ipu])
    sent = {(v["comm_tag"], v["comm_src"], v["comm_dst"], v["comm_size"]) for v in _of(nodes, SEND)}
    received = {(v["comm_tag"], v["comm_src"], v["comm_dst"], v["comm_size"]) for v in _of(nodes, RECEIVE)}
    assert sent == received
    transfers = trace.table("transfers").drop_duplicates("transfer")
    assert len(sent) == len(transfers[transfers.kind == "p2p"])


def _of(nodes: dict[int, list[Any]], kind: int) -> list[dict[str, Any]]:
    return [_values(node) for found in nodes.values() for node in found if node.type == kind]


def _compare_ipu(trace: Trace, table: pd.DataFrame, nodes: list[Any]) -> None:
    values = [(node, _values(node)) for node in nodes]
    kinds, bytes_of = Counter(node.type for node in nodes), defaultdict(int)
    for node, attributes in values:
        bytes_of[node.type] += attributes.get("tensor_size", 0) + attributes.get("comm_size", 0)
    count = table.kind.value_counts()
    collective = table.op_id.isin(_collective_ops(trace)) & table.kind.isin(["link", "compute"])
    collective &= table.program_id.isin(table[(table.kind == "link") & collective].program_id)
    copies, memory = table[(table.kind == "link") & ~collective], table[table.kind == "host_mid"]
    executions = table[collective].groupby(["instance", "program_id", "iteration"]).ngroups
    assert kinds[COLLECTIVE] == executions
    assert bytes_of[COLLECTIVE] == table[collective].bytes_out.sum()
    met = table[(table.kind == "exchange") & (table.dur > 0)].groupby(["op_id", "start", "dur"])
    both = len(table[(table.kind == "exchange") & (table.dur > 0)]) - met.ngroups
    work = count[["compute", "exchange", "sync", *ON_HOST]].sum() - (collective & (table.kind == "compute")).sum()
    assert kinds[COMPUTE] == work - both
    assert sum(value["is_cpu_op"] for node, value in values) == count[list(ON_HOST)].sum()
    assert bytes_of[SEND] == copies.bytes_out.sum()
    assert bytes_of[RECEIVE] == copies.bytes_in.sum()
    assert bytes_of[LOAD] == memory.bytes_in.sum() + table[table.kind == "remote_load"].bytes_in.sum()
    assert bytes_of[STORE] == memory.bytes_out.sum() + table[table.kind == "remote_store"].bytes_out.sum()
    _check_order(nodes, float(trace.meta["clock_hz"]))


def _check_order(nodes: list[Any], clock_hz: float) -> None:
    """A node begins when all that it depends on has ended, and all but those of the first steps depend on something."""
    ends = {}
    for number, node in enumerate(nodes):
        value = _values(node)
        assert node.id == number
        assert all(ends[needed] <= value["start_cycles"] for needed in node.data_deps), node
        ends[number] = value["start_cycles"] + value["cycles"]
        micros = [int(cycles / clock_hz * 1e6 + 1e-9) for cycles in (value["start_cycles"], ends[number])]
        assert [node.start_time_micros, node.start_time_micros + node.duration_micros] == micros
    needed_by_someone = {needed for node in nodes for needed in node.data_deps}
    assert len(needed_by_someone) >= len(nodes) - 4
    assert sum(not node.data_deps for node in nodes) <= 2


@pytest.mark.parametrize("name", ["loop", "pipeline", "sharded", "overlapped"])
def test_kept_traces(name: str, tmp_path: Path, classes: tuple[Any, Any]) -> None:
    trace = Trace.load(GOLDEN / f"{name}.ipt")
    _compare(trace, _read(trace, tmp_path, classes))


@pytest.mark.heavy
@pytest.mark.usefixtures("upstream_names")
def test_the_pipelining_tutorial(tmp_path: Path, classes: tuple[Any, Any]) -> None:
    """Four stages: each IPU sends activations to the next one and gradients to the one before."""
    pytest.importorskip("torch")
    from ipuperf.models.mnist_cnn import PipelineOptions
    from ipuperf.scenarios.pipeline_mnist import simulate

    trace = simulate(PipelineOptions())[0]
    nodes = _read(trace, tmp_path, classes)
    assert len(nodes) == 4
    _compare(trace, nodes)
    ways = Counter((value["comm_src"], value["comm_dst"]) for value in _of(nodes, SEND))
    assert set(ways) == {(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)}


def _all_reduce(replicas: int) -> Trace:
    import popxl
    from popxl import ops

    import ipuperf

    ir = popxl.Ir(replicas)
    with ir.main_graph:
        x = popxl.variable(np.ones((64, 64), np.float32), name="x")
        out = popxl.d2h_stream((64, 64), popxl.float32, name="out")
        ops.host_store(out, ops.collectives.replicated_all_reduce(ops.matmul(x, x)))
    return ipuperf.simulate_session(popxl.Session(ir, "ipu_hw"))


@pytest.mark.usefixtures("upstream_names")
def test_an_all_reduce_of_sixteen_replicas(tmp_path: Path, classes: tuple[Any, Any]) -> None:
    trace = _all_reduce(16)
    nodes = _read(trace, tmp_path, classes)
    _compare(trace, nodes)
    collectives = _of(nodes, COLLECTIVE)
    assert [value["comm_type"] for value in collectives] == [ALL_REDUCE] * 16
    assert all(value["involved_ipus"] == list(range(16)) for value in collectives)
    # Rings send 15/16 of the 16,384 bytes to be reduced and as many to be gathered.
    assert {value["comm_size"] for value in collectives} == {2 * 15 * 64 * 64 * 4 // 16}
    transfers = trace.table("transfers")
    for ipu, value in enumerate(collectives):
        hops = transfers[(transfers.ipu == ipu) & (transfers.kind == "all_reduce")].drop_duplicates("transfer")
        assert value["comm_size"] == hops.bytes.sum()


def test_a_step_of_both_sets_of_tiles_joins_their_orders(tmp_path: Path, classes: tuple[Any, Any]) -> None:
    trace = Trace.load(GOLDEN / "overlapped.ipt")
    joins = [node for node in _read(trace, tmp_path, classes)[0] if len(node.data_deps) > 1]
    assert joins
    assert all(node.name.endswith("/exchange") for node in joins)


def test_too_many_slices_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chakra, "MOST_SLICES", 100)
    with pytest.raises(TraceError, match=r"Chakra: the trace has [\d,]+ slices .*, allowed: 100; simulate fewer"):
        to_chakra(Trace.load(GOLDEN / "loop.ipt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_export(tmp_path: Path) -> None:
    folder = tmp_path / "0-run"
    folder.mkdir()
    (folder / "trace.ipt").write_bytes((GOLDEN / "pipeline.ipt").read_bytes())
    done = CliRunner().invoke(cli, ["export", str(folder), "--format", "chakra"])
    assert done.stdout == f"written: {folder / 'chakra'} with 2 files, one for each IPU\n"
    assert sorted(file.name for file in (folder / "chakra").iterdir()) == ["grouped.0.et", "grouped.1.et"]
    file = tmp_path / "run.pftrace"
    done = CliRunner().invoke(cli, ["export", str(folder / "trace.ipt"), "--format", "perfetto", "--out", str(file)])
    assert (done.exit_code, done.stdout) == (0, f"written: {file}\n")
    assert io.BytesIO(file.read_bytes()).read(1) == b"\n"
    done = CliRunner().invoke(cli, ["export", str(folder), "--format", "chakr"])
    assert "did you mean chakra?" in done.stderr
