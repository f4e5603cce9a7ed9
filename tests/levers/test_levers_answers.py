"""What changes of programs look like, without a simulation: pipelines divided anew, I/O beside computing, shards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import digest
import numpy as np
import pytest
from programtext import _op
from rows import Golden
from test_levers_golden import run_of, told

from ipuperf import popxl
from ipuperf.ir import Graph, Ir, IrError, Op, schedule
from ipuperf.levers import Trial, measure
from ipuperf.levers.change import ProgramChange
from ipuperf.levers.io_tiles import _obstacle, _overlapped
from ipuperf.levers.layers import divided, layers_of, obstacle
from ipuperf.levers.remote import _by_ipu, _held
from ipuperf.levers.rerun import Rerun, RerunError
from ipuperf.levers.sharding import Differences, shard, shardable
from ipuperf.levers.trial import Lever
from ipuperf.pipelines import BuildRequest, HostIo
from ipuperf.popxl import ops
from ipuperf.simulation import SimulationError

C = ops.collectives


def request_of(name: str, installed_front_ends: Callable) -> BuildRequest:
    """What a program asks of its pipeline."""
    asked: list[BuildRequest] = []
    with installed_front_ends():
        run_of(name, installed_front_ends).fresh(lambda request: asked.append(request) or request)
    return asked[0]


# -- pipelines ---------------------------------------------------------------------------------------------------------


def described(request: BuildRequest) -> Iterator[str]:
    """Stages with all that they read, give and keep; ops by type and place."""
    for part in request.parts:
        names = {t: f"%{n}" for n, t in enumerate(part.graph.inputs)}
        for number, op in enumerate(part.graph.ops):
            names.update({t: f"{number}.{n}" for n, t in enumerate(op.outputs)})
        yield f"stage {part.stage} on IPU {part.ipu}"
        for tensor, source in zip(part.graph.inputs, part.sources, strict=True):
            told = {k: getattr(v, "id", v) for k, v in vars(source).items()}
            yield f"  {names[tensor]} {tensor.name} {tensor.spec} from {type(source).__name__} {told}"
        ops = (f"{op.type} {[names.get(t, 'constant') for t in op.inputs]}" for op in part.graph.ops)
        yield f"  ops {', '.join(ops)}"
        yield f"  gives {[names[t] for t in part.graph.outputs]}, keeps {[names[t] for t in part.checkpoints]}"
        yield f"  updates { ({output: variable.id for output, variable in part.updates.items()}) }"
    yield f"outputs {[(one.part, one.output, one.stream.id) for one in request.outputs]}"
    training = request.training
    yield f"loss {(training.loss_part, training.loss_output) if training else None}"


@pytest.mark.parametrize("kept", [False, True])
def test_pipelines_divided_anew(kept: bool, installed_front_ends: Callable, golden: Golden) -> None:
    """Every division of a pipeline of three layers into two stages; with checkpoints and running statistics."""
    request = request_of("replicated-pipeline", installed_front_ends)
    if kept:
        parts = []
        for part in request.parts:
            state = next(s.tensor for s in part.sources if type(s).__name__ == "Data")
            parts.append(replace(part, checkpoints=[part.graph.ops[2].outputs[0]], updates={0: state}))
        request = replace(request, parts=parts)
    layers = layers_of(request)
    lines = [f"{layer.name}: {len(layer.ops)} ops, pinned {layer.pinned}" for layer in layers]
    for first in range(1, len(layers)):
        new = divided(request, (first, len(layers) - first))
        assert sum(len(part.graph.ops) for part in new.parts) == sum(len(layer.ops) for layer in layers)
        lines += [f"-- {first}", *digest.lines("\n".join(described(new)))]
    golden(lines)


def test_what_stands_in_the_way(installed_front_ends: Callable, golden: Golden) -> None:
    request = request_of("stages-in-turn", installed_front_ends)
    one, two = request.parts
    empty = replace(one, graph=one.graph.ir.create_graph("empty"), sources=())
    divisions = {"as it is": request, "one stage": replace(request, parts=[one])}
    divisions |= {"at the same time": replace(request, parts=[one, replace(two, stage=0)])}
    divisions |= {"backwards": replace(request, parts=[two, one])}
    divisions |= {"no ops": replace(request, parts=[one, replace(empty, stage=1)])}
    divisions |= {"recomputed": replace(request, parts=[one, replace(two, recomputed={two.graph.ops[0]})])}
    table = replace(request.timetable, micro_batches=1)
    overlaps = {"as it is": request, "every step": replace(request, copies="every step")}
    overlaps |= {"one micro-batch": replace(request, timetable=table, repeats=1)}
    overlaps |= {"one micro-batch, 2 repeats": replace(request, timetable=table, repeats=2)}
    overlaps |= {"2 repeats": replace(request, repeats=2)}
    overlaps |= {"synthetic": replace(request, host_io=HostIo(synthetic=True))}
    overlaps |= {"all results": replace(request, outputs=[replace(o, returned="all") for o in request.outputs])}
    lines = [f"{name}: {obstacle(changed)}" for name, changed in divisions.items()]
    for name, changed in overlaps.items():
        found = _overlapped(changed, 48)
        streams = [{stream.id: across for stream, across in way.items()} for way in (found.inputs, found.outputs)]
        lines.append(f"{name}: {_obstacle(changed)}, {found.tiles} tiles, {streams}, {found.synthetic}")
    golden(lines)


# -- shards ------------------------------------------------------------------------------------------------------------


def by_reference(x: Any, y: Any, times: int = 0) -> Any:
    """``x`` after a graph has changed it by ``y``, in a loop or once."""

    def change(inner: popxl.TensorByRef, other: popxl.Tensor) -> None:
        ops.add_(inner, other)

    graph = popxl.gir().create_graph(change, x, y)
    ops.repeat(graph, times, x, y) if times else ops.call(graph, x, y)
    return x


def branching(flag: Any, x: Any, y: Any) -> Any:
    graphs = [popxl.gir().create_graph(lambda t: t + 1.0, x), popxl.gir().create_graph(lambda t: t * 2.0, x)]
    return ops.conditional(flag, *graphs, then_inputs=[x], else_inputs=[y])[0]


def trips(x: Any, y: Any, count: int = 3) -> Any:
    graph = popxl.gir().create_graph(lambda a, b: (a + b, b), x, y)
    return ops.repeat(graph, count, x, y)[0]


FLOWS: Mapping[str, tuple[bool, Callable[[Any, Any, Any], Any]]] = {
    "as it was": (False, lambda same, host, own: same),
    "with a constant": (False, lambda same, host, own: same + 1.0),
    "with the host's": (True, lambda same, host, own: same + host),
    "with the host's in place": (True, lambda same, host, own: ops.add_(same, host)),
    "with a replica's own": (True, lambda same, host, own: same * own),
    "of another buffer": (True, lambda same, host, own: same + ops.remote_load(_other(), 0)),
    "all-reduced": (False, lambda same, host, own: C.replicated_all_reduce(host)),
    "all-reduced, then the host's": (True, lambda same, host, own: C.replicated_all_reduce(host) + host),
    "reduced in pairs": (
        True,
        lambda same, host, own: C.replicated_all_reduce(host, group=popxl.gir().replica_grouping(1, 2)),
    ),
    "gathered": (False, lambda same, host, own: C.replicated_all_gather(host).reshape((8192,))[0:2048]),
    "reduce-scattered": (True, lambda same, host, own: ops.concat([C.replicated_reduce_scatter(host)] * 4)),
    "overwritten, perhaps in part": (True, lambda same, host, own: ops.var_updates.copy_var_update_(host, same)),
    "overwritten by the host's": (True, lambda same, host, own: ops.var_updates.copy_var_update_(same, host)),
    "dropped out": (True, lambda same, host, own: ops.dropout(same, popxl.constant([1, 2], popxl.uint32), 0.5)),
    "random": (True, lambda same, host, own: ops.random_normal(popxl.constant([1, 2], popxl.uint32), (2048,))),
    "changed by reference": (False, lambda same, host, own: by_reference(same, same + 1.0)),
    "changed by reference by the host's": (True, lambda same, host, own: by_reference(same, host)),
    "changed by reference in a loop": (False, lambda same, host, own: by_reference(same, same + 1.0, 3)),
    "changed by reference in a loop by the host's": (True, lambda same, host, own: by_reference(same, host, 3)),
    "of a variable as it was": (False, lambda same, host, own: _updated(same, same)),
    "of a variable that the host's changes after it": (True, lambda same, host, own: _updated(same, host)),
    "of a graph that is called with it alone": (False, lambda same, host, own: _called(same, same)),
    "of a graph that is called with the host's too": (True, lambda same, host, own: _called(same, host)),
    "of a graph in a graph": (False, lambda same, host, own: _called(_called(same, same), same)),
    "of a graph that loads from the host": (True, lambda same, host, own: _loading(same)),
    "a view of what the host's changes": (True, lambda same, host, own: _viewed(same, host)),
    "chosen": (False, lambda same, host, own: branching(popxl.constant(True), same, same)),
    "chosen by the host": (True, lambda same, host, own: branching(host[0] > 0.0, same, same)),
    "one of two, by a constant": (True, lambda same, host, own: branching(popxl.constant(True), same, host)),
    "in a loop": (False, lambda same, host, own: trips(same, same + 1.0)),
    "in a loop with the host's": (True, lambda same, host, own: trips(same, host)),
}


def _other() -> Any:
    """A buffer whose variable is each replica's own."""
    buffer = popxl.remote_buffer((2048,), popxl.float32, 1)
    group = popxl.gir().replica_grouping(group_size=1)
    popxl.remote_variable(np.zeros((4, 2048), np.float32), buffer, 0, replica_grouping=group)
    return buffer


def _updated(x: Any, y: Any) -> Any:
    """With a variable that takes ``y`` afterwards, for the next run."""
    kept = popxl.variable(np.zeros(2048, np.float32), name="kept")
    found = x + kept
    ops.add_(kept, y)
    return found


def _called(x: Any, y: Any) -> Any:
    """What a graph makes of ``x`` that is called with ``y`` as well."""
    graph = popxl.gir().create_graph(lambda t: (t + 1.0, t), x)
    ops.call(graph, y)
    return ops.call(graph, x)[0]


def _loading(x: Any) -> Any:
    stream = popxl.h2d_stream((2048,), popxl.float32, "within")
    return ops.call(popxl.gir().create_graph(lambda t: t + ops.host_load(stream), x), x)[0]


def _viewed(x: Any, y: Any) -> Any:
    view = ops.reshape_(x, (2, 1024))
    ops.add_(x, y)
    return view.reshape_((2048,))


def stores(flow: Callable[[Any, Any, Any], Any]) -> Ir:
    """A program on four replicas that loads what is the same on all, and stores what is made of it."""
    program = popxl.Ir(replication=4)
    with program.main_graph, popxl.in_sequence():
        buffer = popxl.remote_buffer((2048,), popxl.float32, 1)
        popxl.remote_variable(np.zeros(2048, np.float32), buffer, 0, name="r")
        group = program.replica_grouping(group_size=1)
        own = popxl.variable(np.zeros((4, 2048), np.float32), replica_grouping=group, name="own")
        host = ops.host_load(popxl.h2d_stream((2048,), popxl.float32, "x"))
        ops.remote_store(buffer, 0, flow(ops.remote_load(buffer, 0), host, own))
    return program._ir


@pytest.mark.parametrize("name", FLOWS)
def test_what_differs_between_replicas(name: str) -> None:
    differs, flow = FLOWS[name]
    program = stores(flow)
    buffer = program.remote_buffers[0]
    assert (buffer in Differences(program, {buffer}).stored) is differs
    assert shardable(program) == ([] if differs else [buffer])


@pytest.mark.parametrize(("size", "replicas", "sharded"), [(1024, 2, True), (1023, 2, False), (32 * 32, 3, True)])
def test_the_smallest_that_is_sharded(size: int, replicas: int, sharded: bool) -> None:
    """What two buffers hold: one is stored from the other, which the host's goes into."""
    program = popxl.Ir(replication=replicas)
    with program.main_graph, popxl.in_sequence():
        one, two, three = (popxl.remote_buffer((size,), popxl.float32, 2) for _ in range(3))
        for buffer in (one, two, three):
            popxl.remote_variable(np.zeros(size, np.float32), buffer, 1)
        ops.remote_store(one, 0, ops.remote_load(two, 1))
        ops.remote_store(two, 1, ops.host_load(popxl.h2d_stream((size,), popxl.float32, "x")))
    ir = program._ir
    assert shardable(ir) == ir.remote_buffers[2:] * sharded
    if sharded:
        shard(ir, ir.remote_buffers[2:3])
        part = ir.remote_buffers[3]
        assert (part.shape, part.entries, part.meta_shape) == ((-(-size // replicas),), 2, (size,))


def test_remote_bytes_by_ipu() -> None:
    """Of a buffer with variables on an IPU all of it; IPU 0 where the program does not say."""
    program = popxl.Ir()
    with program.main_graph, popxl.in_sequence():
        one, two = popxl.remote_buffer((5,), popxl.float32, 3), popxl.remote_buffer((2, 2), popxl.float16, 1)
        popxl.remote_variable(np.zeros(5, np.float32), one, 0)
        popxl.remote_variable(np.zeros(5, np.float32), one, 2)
        with popxl.ipu(2):
            popxl.remote_variable(np.zeros((2, 2), np.float16), two, 0)
    held = _held(program._ir)
    assert list(held.values()) == [3 * 5 * 4, 4 * 2]
    for variable, ipu in zip(program._ir.variables(), (None, None, 2), strict=True):
        variable.ipu = ipu
    assert _by_ipu(program._ir, held) == {0: 60, 2: 8}


def order_of(graph: Graph) -> dict[Op, set[Op]]:
    """What has to run before each op, by its constraints."""
    return {op: set(before) for op, before in graph.constraints.items()}


def test_a_sharded_program_hangs_together(golden: Golden) -> None:
    """Readers of tensors are those that have them as operands, constraints name ops of the graph, order is kept."""

    def flow(same: Any, host: Any, own: Any) -> Any:
        return ops.var_updates.copy_var_update_(same, (same + C.replicated_all_reduce(host)) * same)

    program = stores(flow)
    graph = program.main_graph
    before, order, version = order_of(graph), schedule(graph), graph.version
    shard(program, shardable(program))
    for one in program.all_graphs():
        for tensor in one.tensors.values():
            readers = sorted(op.label for op in one.ops for t in op.inputs if t is tensor)
            assert sorted(op.label for op in tensor.consumers) == readers
        for op, earlier in one.constraints.items():
            assert {op, *earlier} <= set(one.ops)
    assert graph.version > version
    kept = [op for op in order if op in graph.ops]
    now = schedule(graph)
    places = [now.index(op) for op in kept]
    assert places == sorted(places)  # in sequence
    for a, b in itertools.pairwise(order):
        if a in before.get(b, ()) and a in graph.ops and b in graph.ops:
            assert a in graph.constraints[b]
    variable = next(v for v in program.variables() if v.remote)
    held = [variable.spec, variable.remote[0].meta_shape, variable.remote[1], variable.shard_over]
    names = {op: f"{op.type} {place}" for place, op in enumerate(now)}
    lines = [f"{names[op]} after {sorted(names[o] for o in graph.constraints.get(op, ()))}: {_op(op)}" for op in now]
    golden([*lines, str(held), str(program.sealed)])


# -- what is refused ---------------------------------------------------------------------------------------------------


class Scripted(Lever):
    """Gives what it is told to, or raises it."""

    change = "a change"

    def __init__(self, *said: Any) -> None:
        self._said = said

    def tries(self, run: Any) -> Iterator[Any]:
        for one in self._said:
            if isinstance(one, Exception):
                raise one
            yield one


class Following(Lever):
    """Its change takes the part ``alone`` of the time of a run, and the part ``after`` where others come before it."""

    change = "a change"

    def __init__(self, name: str, alone: Fraction, after: Fraction | None = None, **options: Any) -> None:
        self.moves_work = options.pop("moves_work", False)
        self.name, self.factors, self.options = name, (alone, alone if after is None else after), options

    def tries(self, run: Rerun) -> Iterator[Trial]:
        change = ProgramChange(self.name, 1 / self.factors[bool(run.change.what)], **self.options)
        yield Trial(run.change.then(change), run.trace)


def test_changes_follow_the_best_ones(installed_front_ends: Callable) -> None:
    """Up to three together, of levers that gain alone or move work; what gains nothing more is left out."""
    with installed_front_ends():
        run = run_of("batches", installed_front_ends)
    half, third, none = Fraction(1, 2), Fraction(1, 3), Fraction(1)
    levers = [
        Following("a", third),
        Following("b", half),
        Following("c", none, half),  # it does not move work, so nobody asks again
        Following("d", none, Fraction(2, 3), moves_work=True),
        Following("e", Fraction(1, 4), training="another batch"),
        Following("f", Fraction(999, 1000)),
    ]
    results = measure(run, levers)
    assert [trial.what for trial in results.trials] == ["e", "a", "b", "f", "c", "d"]
    assert [(trial.what, trial.cycles / results.cycles) for trial in results.together] == [
        ("a; and b; and e", Fraction(1, 24)),
        ("a; and e", Fraction(1, 12)),
        ("a; and b; and d", Fraction(1, 9)),
        ("b; and e", Fraction(1, 8)),
        ("a; and b", Fraction(1, 6)),
        ("a; and d", Fraction(2, 9)),
        ("b; and d", Fraction(1, 3)),
    ]
    assert [trial.change.training for trial in results.together[:3]] == ["another batch", "another batch", ""]
    (alone,) = measure(run, levers[4:5]).trials
    assert measure(run, [levers[4], levers[3]]).together[0].what == f"{alone.what}; and d"


def test_the_best_that_fits_and_what_is_refused(installed_front_ends: Callable) -> None:
    with installed_front_ends():
        run = run_of("batches", installed_front_ends)
    limit = int(run.trace.meta["bytes_per_tile"])
    now = Trial(ProgramChange("as it is"), run.trace)
    spare = limit - now.fullest
    fits, not_quite = (Trial(ProgramChange(f"{more}", more_bytes=more), run.trace) for more in (spare, spare + 1))
    faster = Trial(ProgramChange("twice the samples", Fraction(2)), run.trace)
    found = measure(run, [Scripted(fits, not_quite, faster), Scripted(fits, IrError("no"), faster)])
    assert [trial.what for trial in found.trials] == ["twice the samples", f"{spare}"]
    assert [told(one) for one in found.untried] == [
        {"what": f"{spare + 1}", "why": f"does not fit: {limit + 1:,} B on the fullest tile of {limit:,}"},
        {"what": "a change", "why": "refused: no"},
    ]
    assert (found.cycles, found.fullest) == (now.cycles, now.fullest)
    assert found.gain(faster) * 2 == found.cycles
    for error in (RerunError("r"), SimulationError("s")):
        assert measure(run, [Scripted(error)]).untried[0].why == f"refused: {error}"
    with pytest.raises(ValueError, match="a fault"):
        measure(run, [Scripted(ValueError("a fault"))])
