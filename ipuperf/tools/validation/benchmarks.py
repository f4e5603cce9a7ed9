"""Named micro-benchmarks: small programs, built on the IR and lowered and simulated like any other.

Each function takes the case (precision, replicas) and the machine, then its own parameters (the ``config`` of a case),
and returns a :class:`Benchmark`. Its docstring says what runs and what is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from ipuperf import ops
from ipuperf.functions import arithmetic, elementary, selection
from ipuperf.functions import shapes as shaping
from ipuperf.ir import (
    CONTEXT,
    FLOAT16,
    FLOAT32,
    INT32,
    Builder,
    DType,
    Graph,
    Ir,
    ReplicaGrouping,
    Stream,
    Tensor,
    TensorSpec,
    Variable,
)
from ipuperf.machine import Machine
from ipuperf.tools.validation.cases import Case
from ipuperf.tools.validation.handwritten import GRAIN, HandPlacedAdd, HandPlacedTriad

PRECISIONS: Mapping[str, tuple[DType, DType]] = {
    "f32": (FLOAT32, FLOAT32),
    "f16.16": (FLOAT16, FLOAT16),
    "f16.32": (FLOAT16, FLOAT32),
}
"""Type of the data and of the partial sums."""


@dataclass(frozen=True)
class Benchmark:
    """A program and the work of one run of it.

    Attributes:
        ir: the program.
        work: operations, bytes or items of one run.
        rate: the quantity per second of ``work``: ``flop rate``, ``bandwidth`` or ``rate``; ``""``: none.
        counted: only phases whose vertex name begins with this are counted; ``""``: the whole run.
        launched: whether the launch of these compute sets counts too.
        part: only steps of this kind in the trace (``host_begin`` ...) are counted; ``""``: see ``counted``.
        times: how often a run repeats the measured work; times and cycles are given for one repetition.
    """

    ir: Ir
    work: float = 0.0
    rate: str = ""
    counted: str = ""
    launched: bool = False
    part: str = ""
    times: int = 1


Recipe = Callable[..., Benchmark]


# -- helpers -----------------------------------------------------------------------------------------------------------


def _variable(ir: Ir, name: str, shape: tuple[int, ...], dtype: DType, ipu: int = 0) -> Variable:
    """Make a variable whose values are never read; its zeros take no memory on the host."""
    main = ir.main_graph
    # A broadcast view: one zero, whatever the shape.
    data = np.broadcast_to(np.zeros((), dtype.numpy), shape)
    tensor = Variable(main.tensor_id(name), TensorSpec(shape, dtype), main, data, ir.grouping())
    tensor.ipu = ipu
    main.add(tensor)
    return tensor


def _stream(ir: Ir, name: str, shape: tuple[int, ...], dtype: DType, direction: str) -> Stream:
    main = ir.main_graph
    tensor = Stream(main.tensor_id(name), TensorSpec(shape, dtype), main, direction)
    main.add(tensor)
    return tensor


def _on(ipu: int, graph: Graph, op: type[ops.Op], inputs: list[Tensor], name: str, **attributes: object) -> Tensor:
    """Make an op on an IPU and return its first result."""
    with CONTEXT.on_ipu(ipu):
        return Builder(graph).op(op, inputs, name, **attributes)


def _sent(graph: Graph, tensor: Tensor, ipu: int) -> Tensor:
    """Copy a tensor of IPU 0 to another IPU."""
    return _on(ipu, graph, ops.IpuCopy, [tensor], "sent", source=0, destination=ipu)


# -- benchmarks --------------------------------------------------------------------------------------------------------


def matmul(case: Case, machine: Machine, *, m: int, k: int, n: int) -> Benchmark:
    """One matrix product [m, k] x [k, n] on one IPU, operands where its plan wants them; counts 2 m k n operations."""
    data, partials = PRECISIONS[case.precision]
    ir = Ir()
    operands: list[Tensor] = [_variable(ir, "a", (m, k), data), _variable(ir, "b", (k, n), data)]
    Builder(ir.main_graph).create(ops.MatMul, operands, ["c"], partials_dtype=partials)
    return Benchmark(ir, 2.0 * m * k * n, "flop rate")


def tile_products(case: Case, machine: Machine, *, rows: int) -> Benchmark:
    """[rows, 16] x [16, 16] on every tile at once, nothing exchanged; counts the operations of all tiles."""
    data, partials = PRECISIONS[case.precision]
    tiles = machine.chip.tiles
    ir = Ir()
    weights, field = _variable(ir, "weights", (tiles, 16, 16), data), _variable(ir, "field", (tiles, 16, rows), data)
    Builder(ir.main_graph).create(ops.MatMul, [weights, field], ["c"], partials_dtype=partials)
    return Benchmark(ir, 2.0 * tiles * rows * 16 * 16, "flop rate", counted="poplin::ConvPartial")


def tile_add(case: Case, machine: Machine, *, tiles: int, elements: int) -> Benchmark:
    """a + b with ``elements`` float32 elements on each of ``tiles`` tiles, one compute set, nothing exchanged."""
    ir = Ir()
    operands: list[Tensor] = [_variable(ir, name, (tiles * GRAIN,), FLOAT32) for name in "ab"]
    Builder(ir.main_graph).create(HandPlacedAdd, operands, ["sum"], elements=elements)
    return Benchmark(ir, float(tiles * elements), "flop rate")


def stream_triad_bytes(case: Case, machine: Machine, *, elements: int) -> Benchmark:
    """STREAM triad a = b + s c with ``elements`` float32 of each array on every tile; counts 12 bytes an element."""
    built = stream_triad(case, machine, elements=elements)
    # Two operations stand for 12 bytes: two elements of 4 bytes are read and one is written.
    return Benchmark(built.ir, 6 * built.work, "bandwidth")


def stream_triad(case: Case, machine: Machine, *, elements: int) -> Benchmark:
    """The same triad; counts 2 operations an element."""
    tiles = machine.chip.tiles
    ir = Ir()
    operands: list[Tensor] = [_variable(ir, name, (tiles * GRAIN,), FLOAT32) for name in "bc"]
    Builder(ir.main_graph).create(HandPlacedTriad, operands, ["a"], elements=elements)
    return Benchmark(ir, 2.0 * tiles * elements, "flop rate")


def tile_copy(case: Case, machine: Machine, *, bytes: int) -> Benchmark:
    """A copy of ``bytes`` bytes within each tile; counts the copy and its launch.

    The copied value is carried by a loop, which copies it twice in each trip.
    """
    ir = Ir()
    body = ir.create_graph("body")
    shape = (machine.chip.tiles * bytes // 4,)
    body.add_output(Builder(body).op(ops.Neg, [body.add_input(TensorSpec(shape, FLOAT32), "x")], "y"))
    # Two copies in each of the four trips.
    trips, times = 4, 8
    Builder(ir.main_graph).create(ops.Loop, [_variable(ir, "x", shape, FLOAT32)], ["y"], callee=body, trip_count=trips)
    return Benchmark(ir, float(times * bytes), "bandwidth", counted="poplar::Memcpy", launched=True, times=times)


def tile_exchange(case: Case, machine: Machine, *, bytes: int) -> Benchmark:
    """Every tile receives ``bytes`` bytes in one exchange (a transposition); counts the exchange, setup included."""
    ir = Ir()
    rows = machine.chip.tiles
    x = _variable(ir, "x", (rows, bytes // 4), FLOAT32)
    Builder(ir.main_graph).create(ops.Transpose, [x], ["y"], permutation=(1, 0))
    return Benchmark(ir, float(rows * bytes), "bandwidth", counted="exchange")


def _repeated(ir: Ir, body: Graph, result: Tensor, operands: list[Tensor], trips: int) -> Benchmark:
    """Run ``body`` ``trips`` times in one run, as ``poptorch.for_loop`` does; one trip is counted.

    The inputs of the body are the previous trip's result, the operands (the loop carries both), and constants.
    """
    # The body's inputs are the result of the previous trip, the operands, and constants that no trip changes.
    last_result, *loop_inputs = body.inputs
    carried = loop_inputs[: len(operands)]
    for tensor in (result, *carried):
        body.add_output(tensor)
    loop_operands = [_variable(ir, "start", last_result.shape, last_result.dtype), *operands]
    loop_operands += [_variable(ir, tensor.name, tensor.shape, tensor.dtype) for tensor in loop_inputs[len(operands) :]]
    names = [f"last_{tensor.name}" for tensor in (result, *carried)]
    named = {"trip_count": trips, "conditional": True}
    Builder(ir.main_graph).create(ops.Loop, loop_operands, names, callee=body, **named)
    return Benchmark(ir, float(trips), "rate", times=trips)


def repeated_gather(case: Case, machine: Machine, *, rows: int, width: int, indices: int, trips: int) -> Benchmark:
    """Take ``indices`` rows of a table of ``rows`` x ``width``, ``trips`` times in one run.

    The loop carries table, indices and result.
    """
    data, _ = PRECISIONS[case.precision]
    ir = Ir()
    body = ir.create_graph("body")
    operands: list[Tensor] = [_variable(ir, "table", (rows, width), data), _variable(ir, "index", (indices,), INT32)]
    body.add_input(TensorSpec((indices, width), data), "before")
    inputs: list[Tensor] = [body.add_input(tensor.spec, tensor.name) for tensor in operands]
    return _repeated(ir, body, Builder(body).op(ops.Gather, inputs, "found", axis=0), operands, trips)


def _scatter_added(builder: Builder, slices: Tensor, index: Tensor, rows: int) -> Tensor:
    """Add slices up into zeros, which are initial values of the op.

    So does PopTorch, as ``ipuperf.poptorch`` here, unless it sees that these are a constant (poptorch:
    popart_canonicalization, scatterAddHandler). Its earlier versions add the sums to the zeros.
    """
    zeros = builder.graph.add_input(TensorSpec((rows, slices.shape[1]), slices.dtype), "zeros")
    return builder.op(ops.ScatterReduce, [slices, index, zeros], "total", axis=0, axis_size=rows)


def repeated_scatter_add(case: Case, machine: Machine, *, rows: int, width: int, indices: int, trips: int) -> Benchmark:
    """Add ``indices`` slices of ``width`` up into ``rows`` zeros, ``trips`` times in one run.

    The loop carries slices, indices and result.
    """
    data, _ = PRECISIONS[case.precision]
    ir = Ir()
    body = ir.create_graph("body")
    operands: list[Tensor] = [
        _variable(ir, "slices", (indices, width), data),
        _variable(ir, "index", (indices,), INT32),
    ]
    body.add_input(TensorSpec((rows, width), data), "before")
    slices, index = (body.add_input(tensor.spec, tensor.name) for tensor in operands)
    return _repeated(ir, body, _scatter_added(Builder(body), slices, index, rows), operands, trips)


def repeated_interaction(
    case: Case, machine: Machine, *, atoms: int, edges: int, width: int, gaussians: int, trips: int
) -> Benchmark:
    """SchNet's interaction block (:class:`ipuperf.models.schnet.InteractionBlock`) without gradients, repeated in one
    run.

    There are ``atoms`` of ``width`` features and ``edges`` between them with distances in ``gaussians`` Gaussians;
    filters are as wide as the features. The loop carries features, edges, distances and the result.
    """
    data, _ = PRECISIONS[case.precision]
    ir = Ir()
    body = ir.create_graph("body")
    shapes = {"features": (atoms, width), "distances": (edges,), "basis": (edges, gaussians)}
    operands: list[Tensor] = [_variable(ir, name, shape, data) for name, shape in shapes.items()]
    operands += [_variable(ir, name, (edges,), INT32) for name in ("sources", "targets")]
    body.add_input(TensorSpec((atoms, width), data), "before")
    features, distances, basis, sources, targets = (body.add_input(t.spec, t.name) for t in operands)

    def linear(features_in: Tensor, name: str, width_in: int, bias: bool = True) -> Tensor:
        """Weights lie as their product wants them (PopART transposes in place)."""
        product = features_in @ body.add_input(TensorSpec((width_in, width), data), name)
        return product + body.add_input(TensorSpec((width,), data), f"{name}_bias") if bias else product

    def activation(values: Tensor) -> Tensor:
        """The shifted softplus of the publication's program, which is exact for large numbers."""
        return (
            elementary.log1p(arithmetic.exp(-arithmetic.abs(values)))
            + arithmetic.clamp(values, 0, math.inf)
            - math.log(2.0)
        )

    builder = Builder(body)
    with CONTEXT.building(builder):
        cut = (arithmetic.cos(distances * math.pi / 6.0) + 1.0) * 0.5
        filters = linear(activation(linear(basis, "filter1", gaussians)), "filter2", width)
        filters = filters * shaping.reshape(cut, (edges, 1))
        neighbours = selection.gather(linear(features, "features_in", width, bias=False), sources)
        sums = _scatter_added(builder, neighbours * filters, targets, atoms)
        result = linear(activation(linear(sums, "features_out", width)), "mixing", width)
    return _repeated(ir, body, result, operands, trips)


def repeated_convolution(
    case: Case, machine: Machine, *, height: int, width: int, kernel: int, channels: int, amp_percent: int, trips: int
) -> Benchmark:
    """Convolve an image with a square ``kernel`` and copy the result over the image, ``trips`` times in one run.

    All ``channels`` go to all ``channels``; the image is padded so that it keeps its size. The plan may use
    ``amp_percent`` (a hundred times ``availableMemoryProportion``) of a tile's memory. The whole run is counted.
    """
    data, partials = PRECISIONS[case.precision]
    ir = Ir()
    body = ir.create_graph("body")
    operands: list[Tensor] = [
        _variable(ir, "image", (1, channels, height, width), data),
        _variable(ir, "weights", (channels, channels, kernel, kernel), data),
    ]
    image, weights = (body.add_input(tensor.spec, tensor.name) for tensor in operands)
    builder = Builder(body)
    options = {"partials_dtype": partials, "available_memory_proportion": amp_percent / 100}
    blurred = builder.op(ops.Conv, [image, weights], "blurred", padding=kernel // 2, **options)
    builder.op(ops.CopyVarUpdate, [image, blurred], "image")
    Builder(ir.main_graph).create(ops.Loop, operands, [], callee=body, trip_count=trips, by_ref=(0, 1))
    return Benchmark(ir)


def host_to_device(case: Case, machine: Machine, *, bytes: int, ipus: int = 1) -> Benchmark:
    """A stream copy of ``bytes`` bytes to each of the IPUs, in one run."""
    ir = Ir(case.replicas)
    main = ir.main_graph
    for ipu in range(ipus):
        stream = _stream(ir, f"in{ipu}", (bytes // 4,), INT32, "h2d")
        space = _on(ipu, main, ops.Init, [], "space", shape=stream.shape, dtype=INT32, init="undefined")
        _on(ipu, main, ops.HostLoad, [space], "loaded", stream=stream)
    return Benchmark(ir, float(bytes * ipus * case.replicas), "bandwidth")


def device_to_host(case: Case, machine: Machine, *, bytes: int, ipus: int = 1) -> Benchmark:
    """A stream copy of ``bytes`` bytes from each of the IPUs, in one run."""
    ir = Ir(case.replicas)
    for ipu in range(ipus):
        value = _variable(ir, f"value{ipu}", (bytes // 4,), INT32, ipu)
        stream = _stream(ir, f"out{ipu}", (bytes // 4,), INT32, "d2h")
        with CONTEXT.on_ipu(ipu):
            Builder(ir.main_graph).create(ops.HostStore, [value], [], stream=stream)
    return Benchmark(ir, float(bytes * ipus * case.replicas), "bandwidth")


def stream_copy_begin(case: Case, machine: Machine, *, bytes: int) -> Benchmark:
    """A stream copy of ``bytes`` bytes to one IPU; counts its begin, the wait for the host."""
    return replace(host_to_device(case, machine, bytes=bytes), part="host_begin")


def stream_copy_mid(case: Case, machine: Machine, *, bytes: int) -> Benchmark:
    """A stream copy of ``bytes`` bytes to one IPU; counts the transfer."""
    return replace(host_to_device(case, machine, bytes=bytes), part="host_mid")


def stream_copy_end(case: Case, machine: Machine, *, bytes: int) -> Benchmark:
    """A stream copy of ``bytes`` bytes to one IPU; counts its end, until the IPU may go on."""
    return replace(host_to_device(case, machine, bytes=bytes), part="host_end")


def trivial_multiply(case: Case, machine: Machine, *, elements: int, copies: int, ipus: int = 1) -> Benchmark:
    """One run that multiplies ``elements`` int32 on each IPU by a constant into ``copies`` results an element; all
    operands lie on IPU 0 (PopLibs' linear mapping fills tiles from the first one)."""
    ir = Ir()
    main = ir.main_graph
    x = [_variable(ir, f"x{ipu}", (elements, 1), INT32) for ipu in range(ipus)]
    # All operands start on IPU 0, as PopLibs' linear mapping fills tiles from the first one.
    there = [x[0], *(_sent(main, tensor, ipu) for ipu, tensor in enumerate(x[1:], start=1))]
    for ipu, tensor in enumerate(there):
        ten = _variable(ir, f"ten{ipu}", (1, copies), INT32, ipu)
        _on(ipu, main, ops.Mul, [tensor, ten], "y")
    return Benchmark(ir)


def trivial_sum(case: Case, machine: Machine, *, elements: int, terms: int, ipus: int = 1) -> Benchmark:
    """One run that sums ``terms`` int32 into each of ``elements`` results on each IPU and sends the sums to IPU 0."""
    ir = Ir()
    main = ir.main_graph
    sums = []
    for ipu in range(ipus):
        x = _variable(ir, f"x{ipu}", (elements, terms), INT32, ipu)
        sums.append(_on(ipu, main, ops.ReduceSum, [x], "y", axes=(1,), keepdims=False))
    for ipu, tensor in enumerate(sums[1:], start=1):
        Builder(main).create(ops.IpuCopy, [tensor], ["back"], source=ipu, destination=0)
    return Benchmark(ir)


def repeated_broadcast_add(case: Case, machine: Machine, *, elements: int, trips: int, ipus: int = 1) -> Benchmark:
    """Add a constant to ``elements`` int32 on each IPU, ``trips`` times in one run.

    Constant and operands lie on IPU 0 (as for :func:`trivial_multiply`), so they travel to the other IPUs and back in
    every trip.
    """
    ir = Ir()
    body = ir.create_graph("body")
    constant = body.add_input(TensorSpec((1,), INT32), "constant")
    values: list[Tensor] = [body.add_input(TensorSpec((elements,), INT32), f"x{ipu}") for ipu in range(ipus)]
    there = [values[0], *(_sent(body, x, ipu) for ipu, x in enumerate(values[1:], start=1))]
    scalars = [constant, *(_sent(body, constant, ipu) for ipu in range(1, ipus))]
    results = [
        _on(ipu, body, ops.AddLhsInplace, [x, scalar], f"y{ipu}")
        for ipu, (x, scalar) in enumerate(zip(there, scalars, strict=True))
    ]
    for ipu, (result, x) in enumerate(zip(results[1:], values[1:], strict=True), start=1):
        Builder(body).create(ops.IpuCopy, [result, x], ["back"], source=ipu, destination=0)
    operands: list[Tensor] = [_variable(ir, "five", (1,), INT32)]
    operands += [_variable(ir, f"x{ipu}", (elements,), INT32) for ipu in range(ipus)]
    # The values are changed in place, so the loop must not copy them in and out.
    by_reference = tuple(range(1, ipus + 1))
    Builder(ir.main_graph).create(ops.Loop, operands, [], callee=body, trip_count=trips, by_ref=by_reference)
    return Benchmark(ir)


def all_reduce(case: Case, machine: Machine, *, bytes: int) -> Benchmark:
    """A sum of ``bytes`` bytes of float32 over all replicas; counts the bytes of one replica."""
    ir = Ir(case.replicas)
    x = _variable(ir, "x", (bytes // 4,), FLOAT32)
    Builder(ir.main_graph).create(ops.ReplicatedAllReduce, [x], ["y"], op="add", group=ReplicaGrouping(case.replicas))
    return Benchmark(ir, float(bytes), "bandwidth")


BENCHMARKS: Mapping[str, Recipe] = MappingProxyType(
    {
        builder.__name__: builder
        for builder in (
            matmul,
            tile_products,
            tile_add,
            stream_triad_bytes,
            stream_triad,
            tile_copy,
            tile_exchange,
            repeated_gather,
            repeated_scatter_add,
            repeated_interaction,
            repeated_convolution,
            host_to_device,
            device_to_host,
            stream_copy_begin,
            stream_copy_mid,
            stream_copy_end,
            trivial_multiply,
            trivial_sum,
            repeated_broadcast_add,
            all_reduce,
        )
    }
)
"""The micro-benchmarks by name."""

HOST_BENCHMARKS = frozenset(
    {"host_to_device", "device_to_host", *(f"stream_copy_{e}" for e in ("begin", "mid", "end"))}
)
"""Micro-benchmarks with streams, whose figures depend on how far the host is ahead."""
