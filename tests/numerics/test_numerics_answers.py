"""What the analysis and the memory of random programs come to, and every refusal of the evaluator, as rows."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from answers import answer
from fuzzing import popxl as family
from programtext import checksum
from rows import Golden

from ipuperf import ir, ops
from ipuperf.numerics import Evaluator, exceptions, host, room
from ipuperf.numerics.compiler import Compiler
from ipuperf.numerics.plan import Plan, make_plan
from ipuperf.ops.shape import SliceInplace, TransposeInplace

FLOAT = ir.FLOAT32


def facts(plan: Plan) -> str:
    """What a plan says, by names of tensors and ops."""
    lists = [
        [op.label for op in plan.order],
        sorted((t.id, n) for t, n in plan.last_use.items()),
        sorted(t.id for t in plan.output_groups),
        sorted((t.id, n) for t, n in plan.changes.items()),
        sorted(t.id for t in plan.written),
        sorted(op.label for op in plan.elided),
        sorted(op.label for op in plan.unread),
        sorted(plan.changed_inputs()),
    ]
    return f"{' '.join(str(len(each)) for each in lists)} {checksum(repr(lists))}"


@pytest.mark.parametrize("seed", range(40))
def test_analysis_and_memory_of_random_programs(seed: int, golden: Golden) -> None:
    program = family.Device(family.draw(random.Random(seed))).session.ir._ir
    evaluator = Evaluator(program)
    compiler = evaluator._compiler
    graphs = program.callees_first()
    golden(
        {
            "plans": checksum(repr([facts(make_plan(graph)) for graph in graphs])),
            "main": facts(make_plan(program.main_graph)),
            "steps": len(evaluator._code),
            "intermediates": compiler.pool.bytes,
            "temporaries": compiler._scratch.bytes,
            "compiled": compiler.memory_bytes,
            "all": evaluator.memory_bytes,
            "variables": room.variable_bytes(program),
            "streams": f"{len(evaluator.required_inputs())} {len(evaluator.produced_outputs())}",
        }
    )


# -- refusals ----------------------------------------------------------------------------------------------------------


def _variable(program: ir.Ir, data: Any, spec: ir.TensorSpec | None = None, **more: Any) -> ir.Variable:
    data = np.asarray(data, np.float32)
    spec = spec or ir.TensorSpec(data.shape, FLOAT)
    variable = ir.Variable(
        program.main_graph.tensor_id("v"),
        spec,
        program.main_graph,
        data,
        more.pop("grouping", program.grouping()),
        **more,
    )
    program.main_graph.add(variable)
    return variable


def _concat(change: str) -> None:
    """An in-place concat of a part, and a change of it or of the operand before the other is read."""
    program = ir.Ir()
    main = program.main_graph
    with ir.CONTEXT.sequence(True):
        x, y = (main.create(ops.Exp, [_variable(program, [1, 2])], ["x"]).outputs[0] for _ in range(2))
        joined = main.create(ops.ConcatInplace, [x, y], ["joined"]).outputs[0]
        changed, read = (joined, x) if change == "result" else (x, joined)
        main.create(ops.ExpInplace, [changed], ["changed"])
        main.create(ops.Neg, [read], ["read"])
    make_plan(main)


def _checked(op_class: type[ops.Op], *arrays: Any, **attributes: Any) -> str:
    """A kernel that looks for exceptions, on two replicas."""
    graph = ir.Ir(2).create_graph("g")
    values = [np.float32(array) for array in arrays]
    inputs = [graph.add_input(ir.TensorSpec(value.shape[1:], FLOAT), "x") for value in values]
    op = graph.create(op_class, inputs, ["y"], **attributes)
    out = np.zeros((2, *op.outputs[0].shape), op.outputs[0].dtype.numpy)
    with np.errstate(all="ignore"):
        env = SimpleNamespace(replicas=2, scratch=lambda shape, dtype, slot=0: np.zeros(shape, dtype))
        exceptions.CheckedKernel(op, op.kernel(values, [out], env), values, [out])()
    return f"{exceptions.checks(op)} {out.tolist()}"


def _sharded(size: int, held: int, **more: Any) -> Any:
    program = ir.Ir(4)
    group = program.grouping(1, size)
    shape = (5,) if group.num_groups == 1 else (group.num_groups, 5)
    data = np.arange(np.prod(shape)).reshape(shape)
    spec = ir.TensorSpec((held,), FLOAT, (5,))
    return _variable(program, data, spec, grouping=group, **more)


def _round_trip(variable: ir.Variable) -> str:
    there = host.to_device(variable)
    group = host.shard_group(variable) if host.is_sharded(variable) else None
    return f"{group} {there.tolist()} {host.from_device(variable, there).tolist()}"


def _mapped(folder: Path, value: float) -> str:
    file = folder / "data"
    np.zeros(2, np.float32).tofile(file)
    variable = _variable(ir.Ir(), [0, 0])
    variable.data = np.memmap(file, np.float32, "r")
    host.write_back(variable, np.full(2, value, np.float32))
    return str(variable.data.tolist())


def _run(feeds: Callable[[ir.Stream], dict[Any, Any]], loads: int = 1) -> str:
    program = ir.Ir(2)
    main = program.main_graph
    streams = [ir.Stream(name, ir.TensorSpec((2,), FLOAT), main, way) for name, way in (("in", "h2d"), ("out", "d2h"))]
    for stream in streams:
        main.add(stream)
    with ir.CONTEXT.sequence(True):
        for _ in range(loads):
            start = main.create(ops.Init, [], ["x"], shape=(2,), dtype=FLOAT).outputs[0]
            loaded = main.create(ops.HostLoad, [start], ["x"], stream=streams[0]).outputs[0]
            main.create(ops.HostStore, [loaded], [], stream=streams[1])
    return str([array.tolist() for array in Evaluator(program).run(feeds(streams[0])).values()])


def _other(stream: ir.Stream) -> ir.Stream:
    return ir.Stream("other", stream.spec, stream.graph, "h2d")


def _view_of(op_class: type[ops.Op], **attributes: Any) -> str:
    """A variable changed through a view of it, and what it reads then."""
    program = ir.Ir(2)
    main = program.main_graph
    variable = _variable(program, [[1, 2, 3], [4, 5, 6]])
    with ir.CONTEXT.sequence(True):
        view = main.create(op_class, [variable], ["view"], **attributes).outputs[0]
        main.create(ops.AddLhsInplace, [view, main.create(ops.Neg, [view], ["n"]).outputs[0]], ["sum"])
    evaluator = Evaluator(program)
    evaluator.load_variables()
    evaluator.run()
    evaluator.store_variables()
    return f"{variable.data.tolist()} {len(evaluator._code)}"


def _wrong_frame() -> None:
    graph = ir.Ir().create_graph("g")
    Compiler(1, {}, {}).frame(graph, [np.zeros(1)], [])


def _no_value(make: Callable[[ir.Ir], Any]) -> Any:
    program = ir.Ir()
    make(program)
    return Evaluator(program)


def _remote_variable(program: ir.Ir, entry: int, use: bool) -> None:
    buffer = program.remote_buffer((2,), FLOAT, 2)
    variable = _variable(program, [1, 2], remote=(buffer, entry))
    if use:
        program.main_graph.create(ops.Neg, [variable], ["y"])


def _sized() -> ir.Ir:
    """Five variables on four replicas, and results of them."""
    program = ir.Ir(4)
    for size in (1000, 2000, 3000, 500, 4000):
        variable = _variable(program, np.zeros(1000 * size, np.float32))
        if size == 2000:
            program.main_graph.create(ops.Neg, [variable], ["result"])
    return program


def _taking(free: int, *taken: int, fails: str = "") -> str:
    """Values that are made where so many bytes are free."""
    with mock.patch.object(room, "free_bytes", return_value=(free, "a limit")):
        program, found = _sized(), []
        with room.room_for(program, found):
            found += taken
            if fails:
                raise MemoryError(fails)
    return f"{room.variable_bytes(program)} {found}"


def _free(folder: Path, **files: str) -> Any:
    """What is free where a control group has these files."""
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    groups = ((folder / "memory.max", folder / "memory.current"),)
    with mock.patch.object(room, "_CONTROL_GROUPS", groups):
        free, kind = room.free_bytes()
    return (free, kind) if "control" in kind else "no limit of a group"


NAN, INF = float("nan"), float("inf")
REFUSED: dict[str, Callable[[Path], Any]] = {
    "concat, then the result changes": lambda _: _concat("result"),
    "concat, then an operand changes": lambda _: _concat("operand"),
    "0 / 0": lambda _: _checked(ops.Div, [[1, 0], [0, 0]], [[1, 1], [1, 0]]),
    "1 / 0": lambda _: _checked(ops.Div, [[1, 0], [0, 1]], [[1, 1], [1, 0]]),
    "1 / inf": lambda _: _checked(ops.Div, [[1, 0], [0, 1]], [[1, 1], [INF, 1]]),
    "inf / 0": lambda _: _checked(ops.Div, [[1, INF], [0, 1]], [[1, 0], [1, 1]]),
    "1 / 2": lambda _: _checked(ops.Div, [[1, 0], [0, 1]], [[2, 2], [2, 2]]),
    "overflow": lambda _: _checked(ops.Exp, [[1, 2], [3, 100]]),
    "infinite before": lambda _: _checked(ops.Neg, [[1, 2], [3, INF]]),
    "not a number before": lambda _: _checked(ops.Neg, [[1, 2], [3, NAN]]),
    "root of -1": lambda _: _checked(ops.Sqrt, [[1, -1], [3, 1]]),
    "comparison": lambda _: _checked(ops.Greater, [[1, 2], [3, 4]], [[1, 2], [NAN, 4]]),
    "comparison of infinities": lambda _: _checked(ops.Greater, [[1, 2], [3, INF]], [[1, 2], [3, INF]]),
    "is it a number": lambda _: _checked(ops.IsNaN, [[1, 2], [3, NAN]]),
    "reciprocal": lambda _: _checked(ops.Reciprocal, [[1, 2], [0, 4]]),
    "in place": lambda _: _checked(ops.AddLhsInplace, [[1, 3e38], [3, 4]], [[1, 3e38], [3, 4]]),
    "shards of 4": lambda _: _round_trip(_sharded(4, 2)),
    "shards of 2": lambda _: _round_trip(_sharded(2, 3)),
    "shards over 2 of 4": lambda _: _round_trip(_sharded(4, 3, shard_over=2)),
    "shards of a wrong size": lambda _: _round_trip(_sharded(4, 4)),
    "shards over 2 of a wrong size": lambda _: _round_trip(_sharded(4, 2, shard_over=2)),
    "all replicas": lambda _: _round_trip(_variable(ir.Ir(2), [[1, 2], [3, 4]], ir.TensorSpec((2,), FLOAT),
                                                    retrieval="all_replicas")),
    "wrong host data": lambda _: _round_trip(_variable(ir.Ir(2), [1, 2, 3], ir.TensorSpec((2,), FLOAT))),
    "groups": lambda _: _round_trip(_variable(p := ir.Ir(4), [[1, 2], [3, 4]], ir.TensorSpec((2,), FLOAT),
                                              grouping=p.grouping(2, 2))),
    "mapped, another value": lambda folder: _mapped(folder, 1),
    "mapped, the same value": lambda folder: _mapped(folder, 0),
    "a run": lambda _: _run(lambda s: {s: np.float32([[[1, 2], [3, 4]]])}),
    "no input": lambda _: _run(lambda s: {}),
    "another input": lambda _: _run(lambda s: {_other(s): np.zeros(1)}),
    "one input too many": lambda _: _run(lambda s: {s: np.zeros((1, 2, 2), np.float32), _other(s): np.zeros(1)}),
    "wrong shape": lambda _: _run(lambda s: {s: np.zeros((1, 2, 3), np.float32)}),
    "wrong type": lambda _: _run(lambda s: {s: np.zeros((1, 2, 2))}),
    "no slices": lambda _: _run(lambda s: {s: np.zeros((0, 2, 2), np.float32)}),
    "two loads of one": lambda _: _run(lambda s: {s: np.zeros((1, 2, 2), np.float32)}, 2),
    "two stores of one": lambda _: _run(lambda s: {s: np.zeros((2, 2, 2), np.float32)}, 2),
    "two slices": lambda _: _run(lambda s: {s: np.arange(8, dtype=np.float32).reshape(2, 2, 2)}),
    "a view changes": lambda _: _view_of(TransposeInplace),
    "a slice changes": lambda _: _view_of(SliceInplace, axis=(1,), start=(1,)),
    "a wrong number of inputs": lambda _: _wrong_frame(),
    "a remote variable": lambda _: _no_value(lambda p: _remote_variable(p, 0, True)),
    "no such entry": lambda _: _no_value(lambda p: _remote_variable(p, 2, False)).load_variables(),
    "an entry": lambda _: _no_value(lambda p: _remote_variable(p, 1, False)).load_variables(),
    "enough room": lambda _: _taking(3000, 1000, 2000),
    "no room": lambda _: _taking(2_345_678_901, 2_345_000_000, 678_902),
    "a limit of address space": lambda _: _taking(5_000_000, 1, fails=" variable\n 'v' "),
    "nothing said": lambda _: _taking(5_000_000, 1, fails=" "),
    "a control group": lambda folder: _free(folder, memory_max="5000000", memory_current="2000000",
                                            memory_stat="inactive_file 500\nactive_file 70\nother 9\n"),
    "a full control group": lambda folder: _free(folder, memory_max="500", memory_current="2000", memory_stat=""),
    "a control group without limit": lambda folder: _free(folder, memory_max="max", memory_current="1", memory_stat=""),
    "a constant changes": lambda _: _no_value(
        lambda p: p.main_graph.create(ops.ExpInplace, [p.main_graph.constant(np.ones(2))], ["y"])),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_every_refusal(case: str, tmp_path: Path, golden: Golden) -> None:
    golden({"answer": answer(lambda: REFUSED[case](tmp_path))})
