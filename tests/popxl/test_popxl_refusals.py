"""What PopXL and popxl.addons refuse, with the class of exception that upstream's implementation raises.

The conditions are those of ``python/popxl/python_files`` of PopART, of its ops in C++ (``popart_exception``) and of
``popxl_addons``. A program that the machine refuses is refused here, and a program that catches the error goes on.
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popart import popart_exception
from ipuperf.popxl import ops
from ipuperf.popxl.ops import collectives, var_updates
from ipuperf.popxl.transforms import ExpectedConnection, GradGraphInfo, autodiff

Case = tuple[type[BaseException], Callable[[Any], Any]]
F8 = popxl.float8_143


def host(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def program() -> Any:
    """A program on two replicas with what the cases below begin with."""
    foreign = within(1, lambda ir: popxl.variable(1.0))
    foreign_stream = within(1, lambda ir: popxl.d2h_stream((2, 3), popxl.float32))
    ir = popxl.Ir(2)
    with ir.main_graph:
        x = popxl.variable(host(2, 3), name="x")
        graph = ir.create_graph(lambda t: t + 1, x)
        return SimpleNamespace(
            ir=ir,
            foreign=foreign,
            foreign_stream=foreign_stream,
            x=x,
            y=x + 1,
            n=popxl.variable([0, 1], popxl.int32),
            scale=popxl.constant(1, popxl.int32),
            seed=popxl.variable([1, 2], popxl.uint32),
            index=popxl.variable([0], popxl.uint32),
            image=popxl.variable(host(1, 1, 4, 4)),
            eight=popxl.variable(host(2, 2), F8),
            eights=popxl.variable(host(1, 1, 4, 4), F8),
            every=popxl.variable(host(2), retrieval_mode="all_replicas"),
            words=popxl.variable(host(2, 3, 4, dtype=np.uint16)),
            table=popxl.variable(host(2, 3, dtype=np.float16)),
            buffer=popxl.remote_buffer((2, 3), popxl.float32),
            graph=graph,
            call=ops.call_with_info(graph, x),
            stream=popxl.h2d_stream((2,), popxl.float32, "in"),
            other=popxl.h2d_stream((2,), popxl.float32, "other"),
            out=popxl.d2h_stream((2,), popxl.float32, "out"),
        )


def within(replicas: int, act: Callable[[popxl.Ir], Any]) -> Any:
    """What ``act`` does in the main graph of a program of its own."""
    with (ir := popxl.Ir(replicas)).main_graph:
        return act(ir)


def inside(p: Any, act: Callable[[Any], Any]) -> Any:
    """What ``act`` does within a graph that is called."""
    return p.ir.create_graph(lambda t: act(t) or t, p.x)


def on_two_ipus(p: Any) -> list[popxl.Tensor]:
    tensors = []
    for number in range(2):
        with popxl.ipu(number):
            tensors.append(ops.init((2,), popxl.float32))
    return tensors


def sealed(p: Any, device: Any = "ipu_model") -> popxl.Session:
    """A session of the program."""
    return popxl.Session(p.ir, device)


def ran(p: Any, inputs: Any, outputs: Any = None) -> Any:
    """A run of a program from a stream to a stream."""
    with p.ir.main_graph:
        ops.host_store(p.out, ops.host_load(p.stream) + 1)
    with popxl.Session(p.ir, "ipu_model") as session:
        return session.run(inputs) if outputs is None else session.run_with_outputs(inputs, outputs)


def written(p: Any, tensor: Any, data: Any) -> None:
    sealed(p).write_variable_data(tensor, data)


def ambiguous(p: Any) -> popxl.Session:
    """A tensor shares the storage of another one that changes before it is read."""
    with p.ir.main_graph:
        shared = ops.relu_(p.x)
        ops.add_(p.x, 1)
        ops.host_store(popxl.d2h_stream(p.x.shape, p.x.dtype), shared)
    return popxl.Session(p.ir, "ipu_model")


class Doubled(addons.Module):
    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        return x * 2


def module(p: Any) -> addons.GraphWithNamedArgs:
    return Doubled().create_graph(p.x)[1]


def twice(act: Callable[[], Any]) -> None:
    act()
    act()


def pipeline(p: Any, steps: int, staged: bool) -> None:
    """Two stages of one op each, and an op of no stage unless ``staged``."""
    with addons.pipelined_execution(steps) as pipe:
        with pipe.stage(0), popxl.ipu(0):
            t = ops.copy_to_ipu(p.x + 1, 1) if hasattr(ops, "copy_to_ipu") else (p.x + 1).copy_to_ipu(1)
        with pipe.stage(1), popxl.ipu(1):
            t = t + 1
        if not staged:
            ops.add(t, 1)


def task(p: Any) -> addons.TaskSession:
    return addons.TaskSession([], [], addons.NamedTensors(x=p.x), ir=p.ir, device_desc="ipu_model")


GRAPHS: dict[str, Case] = {
    "a graph of another program within": (RuntimeError, lambda p: popxl.Ir().main_graph.__enter__()),
    "a tensor by its class": (RuntimeError, lambda p: popxl.Tensor()),
    "a graph by its class": (TypeError, lambda p: popxl.Graph()),
    "a type by its class": (TypeError, lambda p: popxl.dtype()),
    "a grouping by its class": (RuntimeError, lambda p: popxl.ReplicaGrouping()),
    "a stream by its class": (NotImplementedError, lambda p: popxl.HostToDeviceStream()),
    "facts about gradients by their class": (TypeError, lambda p: GradGraphInfo()),
    "a connection by its class": (TypeError, lambda p: ExpectedConnection()),
    "what is no function as a graph": (TypeError, lambda p: p.ir.create_graph(5)),
    "too few arguments of a graph": (ValueError, lambda p: p.ir.create_graph(lambda a, b: a, p.x)),
    "too many arguments of a graph": (ValueError, lambda p: p.ir.create_graph(lambda a: a, p.x, p.x)),
    "tensors and numbers in a list": (TypeError, lambda p: p.ir.create_graph(lambda a: a[0], [p.x, 1])),
    "an output that is no tensor": (ValueError, lambda p: p.ir.create_graph(lambda a: 5, p.x)),
    "outputs that are no tensors": (ValueError, lambda p: p.ir.create_graph(lambda a: [a, 5], p.x)),
    "what is no tensor in a graph": (TypeError, lambda p: 5 in p.ir.main_graph),
    "a graph compared with a number": (TypeError, lambda p: p.ir.main_graph == 5),
    "in no order": (TypeError, lambda p: popxl.in_sequence(None).__enter__()),
    "a hook that is not there": (ValueError, lambda p: p.ir.main_graph.remove_op_created_hook(10**6)),
    "a tensor that is not there": (popart_exception, lambda p: p.ir.main_graph.get_tensor("nowhere")),
    "a variable within a graph": (ValueError, lambda p: inside(p, lambda t: popxl.variable(1.0))),
    "a stream to the device within a graph": (ValueError, lambda p: inside(p, lambda t: popxl.h2d_stream((), F8))),
    "a stream to the host within a graph": (ValueError, lambda p: inside(p, lambda t: popxl.d2h_stream((), F8))),
    "a tensor of the graph around": (ValueError, lambda p: inside(p, lambda t: ops.add(t, p.x))),
    "an output of another graph": (ValueError, lambda p: inside(p, lambda t: popxl.graph_output(p.x))),
    "an IPU that nobody chose": (popxl.errors.UndefinedValue, lambda p: popxl.variable(1.0).ipu),
    "a tile set that nobody chose": (popxl.errors.UndefinedValue, lambda p: popxl.variable(1.0).tile_set),
    "the length of a scalar": (ValueError, lambda p: len(ops.sum(p.x))),
    "walking through a tensor": (TypeError, lambda p: list(p.x)),
    "a member of a tensor": (TypeError, lambda p: 1 in p.x),
    "a truth as an index": (TypeError, lambda p: p.x[True]),
    "a word as an index": (TypeError, lambda p: p.x["a"]),
    "a fraction as an index": (TypeError, lambda p: p.x[1.5]),
    "fractions as indices": (TypeError, lambda p: p.x[[0.5, 1.5]]),
    "host data without elements": (ValueError, lambda p: ops.add(p.x, [])),
}

CALLS: dict[str, Case] = {
    "too many inputs": (ValueError, lambda p: ops.call(p.graph, p.x, p.x)),
    "too few inputs": (ValueError, lambda p: ops.call(p.graph)),
    "an input that is given twice": (
        ValueError,
        lambda p: ops.call(p.graph, p.x, inputs_dict={p.graph.inputs[0]: p.x}),
    ),
    "an input of another graph": (ValueError, lambda p: ops.call(p.graph, inputs_dict={p.x: p.x})),
    "an operand of another graph": (ValueError, lambda p: ops.call(p.graph, p.graph.inputs[0])),
    "an operand of another program": (ValueError, lambda p: ops.call(p.graph, p.foreign)),
    "a word as an input": (TypeError, lambda p: ops.call(p.graph, "a")),
    "a negative number of repeats": (ValueError, lambda p: ops.repeat(p.graph, -1, p.x)),
    "more outputs than inputs": (
        ValueError,
        lambda p: ops.repeat(p.ir.create_graph(lambda a: (a, a + 1), p.x), 2, p.x),
    ),
    "too many inputs of a repeat": (ValueError, lambda p: ops.repeat(p.graph, 2, p.x, p.x)),
    "a tensor that is no input of a call": (ValueError, lambda p: p.call.parent_to_graph(p.n)),
    "a tensor that the called graph does not give": (ValueError, lambda p: p.call.graph_to_parent(p.x)),
    "a gradient of another call": (
        TypeError,
        lambda p: autodiff(p.ir.create_graph(lambda a: a * 2, p.x)).inputs_dict(p.call),
    ),
    "a condition that is no truth": (popart_exception, lambda p: ops.conditional(p.x, p.graph, p.graph, [p.x], [p.x])),
    "branches with other outputs": (
        ValueError,
        lambda p: ops.conditional(
            popxl.constant(True), p.graph, p.ir.create_graph(lambda a: (a, a + 1), p.x), [p.x], [p.x]
        ),
    ),
}

DATA: dict[str, Case] = {
    "a name of no type": (ValueError, lambda p: popxl.dtype.from_name("float31")),
    "what is no type": (ValueError, lambda p: popxl.dtype.as_dtype(object())),
    "a scale of float32": (RuntimeError, lambda p: popxl.variable(1.0, popxl.float32, log2_scale=1)),
    "overflow of float32": (RuntimeError, lambda p: popxl.constant(1.0, popxl.float32, nan_on_overflow=True)),
    "integers as 8-bit floats": (
        RuntimeError,
        lambda p: popxl.utils.host_pow2scale_then_cast(host(2, dtype=np.int32), F8),
    ),
    "8-bit floats as float16": (RuntimeError, lambda p: popxl.utils.host_pow2scale_then_cast(host(2), popxl.float16)),
    "no entries": (ValueError, lambda p: popxl.remote_buffer((2,), popxl.float32, 0)),
    "entries set to none": (ValueError, lambda p: setattr(p.buffer, "entries", 0)),
    "another shape of a buffer": (AttributeError, lambda p: setattr(p.buffer, "tensor_shape", (3,))),
    "another type of a buffer": (AttributeError, lambda p: setattr(p.buffer, "tensor_dtype", popxl.int32)),
    "a tensor of another shape in a buffer": (ValueError, lambda p: ops.remote_store(p.buffer, 0, ops.sum(p.x))),
    "a tensor of another type in a buffer": (
        ValueError,
        lambda p: ops.remote_store(p.buffer, 0, ops.cast(p.x, popxl.int32)),
    ),
    "a load into another shape": (ValueError, lambda p: ops.remote_load_(p.buffer, 0, p.n)),
    "another value in a sharded buffer": (
        ValueError,
        lambda p: popxl.remote_replica_sharded_variable(
            host(6), popxl.replica_sharded_buffer((8,), popxl.float32, entries=2), 0
        ),
    ),
    "more shards than replicas": (
        ValueError,
        lambda p: popxl.replica_sharded_buffer((8,), popxl.float32, shard_over=4),
    ),
    "a number of replicas below one": (ValueError, lambda p: popxl.Ir(0)),
    "a number of transfers below one": (ValueError, lambda p: setattr(p.ir, "num_host_transfers", 0)),
}

OPS: dict[str, Case] = {
    "a number for a tensor": (TypeError, lambda p: ops.abs(5)),
    "a tensor of another program": (ValueError, lambda p: ops.add(p.x, p.foreign)),
    "tensors on two IPUs": (ValueError, lambda p: ops.add(*on_two_ipus(p))),
    "tensors on two tile sets": (ValueError, lambda p: ops.add(p.x + 1, ops.io_tile_copy(p.x + 1))),
    "shapes that do not fit": (popart_exception, lambda p: p.x + popxl.variable(host(5))),
    "types that do not fit": (popart_exception, lambda p: p.x + ops.cast(p.x, popxl.float16)),
    "a product that does not fit": (popart_exception, lambda p: p.x @ p.x),
    "partials of integers": (ValueError, lambda p: ops.matmul(p.x, p.x.T, partials_type=popxl.int32)),
    "8-bit products of float32": (TypeError, lambda p: ops.matmul_pow2scaled(p.x, p.x.T, p.scale)),
    "8-bit products by several scales": (ValueError, lambda p: ops.matmul_pow2scaled(p.eight, p.eight, p.n)),
    "8-bit products by a fraction": (
        TypeError,
        lambda p: ops.matmul_pow2scaled(p.eight, p.eight, popxl.constant(1.0, popxl.float32)),
    ),
    "8-bit convolutions of float32": (TypeError, lambda p: ops.conv_pow2scaled(p.image, p.image, p.scale)),
    "8-bit convolutions by several scales": (
        ValueError,
        lambda p: ops.conv_pow2scaled(p.eights, p.eights, p.n),
    ),
    "a cast to 8 bits by several scales": (ValueError, lambda p: ops.pow2scale_cast_to_fp8(p.x, p.n)),
    "a cast to 8 bits of integers": (TypeError, lambda p: ops.pow2scale_cast_to_fp8(p.n, p.scale)),
    "a cast to 8 bits that are 32": (TypeError, lambda p: ops.pow2scale_cast_to_fp8(p.x, p.scale, popxl.float32)),
    "a cast from 8 bits that are 32": (TypeError, lambda p: ops.pow2scale_cast_from_fp8(p.x, p.scale)),
    "two lengths that are open": (ValueError, lambda p: ops.reshape(p.x, (-1, -1))),
    "a length of none": (ValueError, lambda p: ops.reshape(p.x, (0, 6))),
    "a length below -1": (ValueError, lambda p: ops.reshape_(p.x, (-2, 3))),
    "another number of elements": (popart_exception, lambda p: ops.reshape(p.x, (5,))),
    "an axis beyond the last": (ValueError, lambda p: ops.transpose(p.x, (0, 2))),
    "an axis twice": (popart_exception, lambda p: ops.transpose(p.x, (0, 0))),
    "too few axes": (popart_exception, lambda p: ops.transpose_(p.x, (0,))),
    "starts and stops of other lengths": (ValueError, lambda p: ops.slice(p.x, [0, 1], [1])),
    "a squeezed axis of length two": (ValueError, lambda p: ops.squeeze(p.x, [0])),
    "a squeezed axis twice": (ValueError, lambda p: ops.squeeze(p.image, [0, 0])),
    "a squeezed axis that is not there": (ValueError, lambda p: ops.squeeze(p.x, [2])),
    "parts that do not divide": (ValueError, lambda p: ops.split(p.x, 2, 1)),
    "parts of another sum": (popart_exception, lambda p: ops.split(p.x, [1, 1], 1)),
    "joined tensors of other lengths": (popart_exception, lambda p: ops.concat([p.x, p.x.T])),
    "a joined number": (TypeError, lambda p: ops.concat([p.x, 1])),
    "a contents of no kind": (ValueError, lambda p: ops.init((2,), popxl.float32, init_type="ones")),
    "a way of padding": (ValueError, lambda p: ops.conv(p.image, p.image, pad_type="same")),
    "a way of padding windows": (ValueError, lambda p: ops.max_pool(p.image, (2, 2), auto_pad="same")),
    "channels that do not fit": (popart_exception, lambda p: ops.conv(p.image, popxl.variable(host(1, 3, 2, 2)))),
    "a way to interpolate": (ValueError, lambda p: ops.interpolate(p.image, mode="area")),
    "a way to round": (ValueError, lambda p: ops.interpolate(p.image, nearest_mode="up")),
    "a way to place": (ValueError, lambda p: ops.interpolate(p.image, coordinate_transformation_mode="mid")),
    "scales for other axes": (popart_exception, lambda p: ops.interpolate(p.image, (2.0, 2.0))),
    "a way to reduce": (ValueError, lambda p: ops.scatter_reduce(p.x, p.n, "mean", axis_size=3)),
    "neither values nor a length": (ValueError, lambda p: ops.scatter_reduce(p.x, p.n, "sum")),
    "a way to sum losses": (ValueError, lambda p: ops.nll_loss(p.x, p.n, reduction="all")),
    "a copy from an IPU that nobody chose": (ValueError, lambda p: ops.ipu_copy(popxl.variable(1.0), 1)),
    "a reduced axis that is not there": (popart_exception, lambda p: ops.sum(p.x, 2)),
    "indices that are fractions": (popart_exception, lambda p: ops.gather(p.x, ops.cast(p.n, popxl.float32))),
    "a stream of another shape": (
        ValueError,
        lambda p: ops.host_store(popxl.d2h_stream((4,), popxl.float32), p.x),
    ),
    "a stream of another type": (ValueError, lambda p: ops.host_store(popxl.d2h_stream((2, 3), popxl.int32), p.x)),
    "a stream of another program": (ValueError, lambda p: ops.host_store(p.foreign_stream, p.x)),
    "an update of another shape": (popart_exception, lambda p: var_updates.accumulate_(p.x, p.n)),
    "a copy of another shape": (popart_exception, lambda p: var_updates.copy_var_update_(p.x, p.n)),
    "a way to combine": (ValueError, lambda p: collectives.replicated_all_reduce(p.x, "middle")),
    "a way to combine parts": (ValueError, lambda p: collectives.replicated_reduce_scatter(p.x, "middle")),
    "parts of replicas that do not divide": (ValueError, lambda p: collectives.replicated_slice(p.x, 1)),
    "a shape of what is gathered": (ValueError, lambda p: collectives.replicated_all_gather(p.x, output_shape="flat")),
    "a fraction of an axis that is gathered": (ValueError, lambda p: collectives.replicated_all_gather(p.x, 0.5)),
    "more memory than there is": (popart_exception, lambda p: ops.matmul(p.x, p.x.T, 1.5)),
    "a share of memory below none": (
        popart_exception,
        lambda p: ops.gather(p.x, p.n, available_memory_proportion=-1.0),
    ),
    "partials of no type": (popart_exception, lambda p: ops.conv(p.image, p.image, partials_types=["double"])),
    "options of two convolutions": (
        popart_exception,
        lambda p: ops.conv(p.image, p.image, available_memory_proportions=[0.1, 0.1]),
    ),
    "padding of one axis": (popart_exception, lambda p: ops.conv(p.image, p.image, padding=(1, 1))),
    "a window larger than its image": (popart_exception, lambda p: ops.max_pool(p.image, (5, 5))),
    "groups that do not divide the channels": (popart_exception, lambda p: ops.conv(p.image, p.image, groups=2)),
    "levels that fall": (popart_exception, lambda p: ops.histogram(p.x, [2.0, 1.0], False)),
    "an open length that does not divide": (popart_exception, lambda p: ops.reshape(p.x, (-1, 4))),
    "parts of an axis that is not there": (IndexError, lambda p: ops.split(p.x, 1, 2)),
    "lengths of parts of an axis that is not there": (popart_exception, lambda p: ops.split(p.x, [1, 1], 2)),
    "an axis to join that is not there": (popart_exception, lambda p: ops.concat([p.x, p.x], 2)),
    "an axis to gather from that is not there": (popart_exception, lambda p: ops.gather(p.x, p.n, 2)),
    "an axis of a softmax that is not there": (popart_exception, lambda p: ops.softmax(p.x, 2)),
    "an axis of a sum that is not there": (popart_exception, lambda p: ops.cumsum(p.x, 2)),
    "more largest elements than there are": (popart_exception, lambda p: ops.topk(p.x, 0, 3, True, True)),
    "a share of dropped elements above one": (popart_exception, lambda p: ops.dropout(p.x, p.seed, 1.5)),
    "a mask of another shape": (popart_exception, lambda p: ops.shaped_dropout(p.x, p.seed, (4, 3), 0.5)),
    "a seed of another type": (popart_exception, lambda p: ops.random_uniform(p.x, (2,))),
    "a condition of numbers": (popart_exception, lambda p: ops.where(p.x, p.x, p.x)),
    "truths of numbers": (popart_exception, lambda p: ops.logical_and(p.x, p.x)),
    "groups of channels that do not divide": (popart_exception, lambda p: ops.group_norm(p.x, p.x[0], p.x[0], 2)),
    "weights of a norm of another length": (popart_exception, lambda p: ops.layer_norm(p.x, p.n, p.n)),
    "a slice beyond the end": (popart_exception, lambda p: ops.dynamic_slice(p.x, p.index, [0], [5], False)),
    "a slice along an axis that is not there": (
        popart_exception,
        lambda p: ops.dynamic_slice(p.x, p.index, [2], [1], False),
    ),
    "an update of another size": (
        popart_exception,
        lambda p: ops.dynamic_update(p.x, p.index, p.x, [0], [1], False),
    ),
    "indices of another rank": (popart_exception, lambda p: ops.scatter(p.x, p.n, p.x, 2)),
    "labels that are fractions": (popart_exception, lambda p: ops.nll_loss(p.x, p.x[:, 0])),
    "labels of another number": (popart_exception, lambda p: ops.nll_loss(p.x, popxl.variable([0, 1, 2], popxl.int32))),
    "steps of nothing": (popart_exception, lambda p: ops.subsample(p.x, [0, 1])),
    "more steps than axes": (popart_exception, lambda p: ops.subsample(p.x, [1, 1, 1])),
    "a square of truths": (popart_exception, lambda p: ops.sqrt(p.n)),
    "a product of integers": (popart_exception, lambda p: ops.matmul(p.n, p.n)),
    "a value of another shape in place": (popart_exception, lambda p: ops.add_(p.n, p.x)),
    "a scaled sum of other shapes": (popart_exception, lambda p: ops.scaled_add(p.x, p.n)),
    "a gradient of what is no output": (popart_exception, lambda p: autodiff(p.graph, grads_provided=[p.x])),
    "a gradient for what is no input": (popart_exception, lambda p: autodiff(p.graph, grads_required=[p.x])),
}

RUNS: dict[str, Case] = {
    "an op without a graph": (RuntimeError, lambda p: ops.add(p.x, 1)),
    "the current graph without one": (RuntimeError, lambda p: popxl.gcg()),
    "the main graph without one": (RuntimeError, lambda p: popxl.gmg()),
    "a shard of one replica": (ValueError, lambda p: within(1, lambda ir: popxl.replica_sharded_variable(host(4)))),
    "a remote shard of one replica": (
        ValueError,
        lambda p: within(
            1, lambda ir: popxl.remote_replica_sharded_variable(host(4), popxl.remote_buffer((4,), popxl.float32))
        ),
    ),
    "shards that do not divide the replicas": (
        ValueError,
        lambda p: within(4, lambda ir: popxl.replica_sharded_buffer((8,), popxl.float32, shard_over=3)),
    ),
    "groups that do not divide the replicas": (
        ValueError,
        lambda p: within(4, lambda ir: popxl.variable(host(2), replica_grouping=ir.replica_grouping(group_size=3))),
    ),
    "a device of no kind": (ValueError, lambda p: sealed(p, "tpu")),
    "one CPU for two replicas": (ValueError, lambda p: sealed(p, "cpu")),
    "a run outside": (ValueError, lambda p: sealed(p).run()),
    "weights to the host outside": (ValueError, lambda p: sealed(p).weights_to_host()),
    "weights from the host outside": (ValueError, lambda p: sealed(p).weights_from_host()),
    "an input that is missing": (ValueError, lambda p: ran(p, {})),
    "an input that nobody takes": (ValueError, lambda p: ran(p, {p.stream: host(2, 2), p.other: host(2, 2)})),
    "an input of another shape": (ValueError, lambda p: ran(p, {p.stream: host(2, 3)})),
    "an input without an axis of replicas": (ValueError, lambda p: ran(p, {p.stream: host(3, 2)})),
    "an output that is missing": (ValueError, lambda p: ran(p, {p.stream: host(2, 2)}, {})),
    "an output of another shape": (ValueError, lambda p: ran(p, {p.stream: host(2, 2)}, {p.out: host(2, 3)})),
    "the data of what is no variable": (TypeError, lambda p: sealed(p).get_tensor_data(p.y)),
    "data for what is no variable": (TypeError, lambda p: written(p, p.y, host(2, 3))),
    "data of another type": (TypeError, lambda p: written(p, p.x, host(2, 3, dtype=np.int32))),
    "data of twice the bits": (TypeError, lambda p: written(p, p.x, host(2, 3, dtype=np.float64))),
    "data of another shape": (ValueError, lambda p: written(p, p.x, host(3, 2))),
    "a number for 8-bit floats": (TypeError, lambda p: written(p, p.eight, 1.0)),
    "data for all replicas": (NotImplementedError, lambda p: written(p, p.every, host(2, 2))),
    "a tensor read after it changed": (popart_exception, lambda p: ambiguous(p)),
}

ADDONS: dict[str, Case] = {
    "a function that fails as data": (ValueError, lambda p: addons.VariableFactory(lambda: 1 / 0)),
    "a number as data": (ValueError, lambda p: addons.VariableFactory(5)),
    "a function that gives no data": (ValueError, lambda p: addons.VariableFactory(lambda: None)),
    "a way to differentiate": (ValueError, lambda p: module(p).autodiff(method="numeric")),
    "gradients that a module does not write": (Exception, lambda p: module(p).autodiff(method="build_grad")),
    "a gradient of a gradient's graph": (Exception, lambda p: twice(module(p).autodiff)),
    "facts about gradients of a forward graph": (AttributeError, lambda p: module(p).grad_graph_info),
    "four bits of rank two": (
        NotImplementedError,
        lambda p: addons.ops.group_quantize_decompress.group_quantize_decompress(p.words[0], p.table, p.table),
    ),
    "scales of rank one": (
        ValueError,
        lambda p: addons.ops.group_quantize_decompress.group_quantize_decompress(p.words, p.table[0], p.table),
    ),
    "scales of other groups": (
        ValueError,
        lambda p: addons.ops.group_quantize_decompress.group_quantize_decompress(p.words, p.table.T, p.table),
    ),
    "four bits of infinity": (
        ValueError,
        lambda p: addons.ops.group_quantize_decompress.group_quantize_compress_numpy(host(1, 4) * np.inf, 4),
    ),
    "more tensor-parallel than all replicas": (ValueError, lambda p: addons.tensor_parallel_input(host(8), 4, 2)),
    "tensor-parallel replicas that do not divide": (ValueError, lambda p: addons.tensor_parallel_input(host(8), 2, 3)),
    "an axis of a number": (IndexError, lambda p: addons.handle_negative_axis(host(), 0)),
    "an axis beyond": (IndexError, lambda p: addons.handle_negative_axis(host(2), 1)),
    "padding to less": (AssertionError, lambda p: addons.pad_axis(host(4), 2, 0)),
    "shards of another number": (AssertionError, lambda p: addons.unshard2D(host(4, 2, 2), 2, 3, 0, 1)),
    "an order of shards": (ValueError, lambda p: addons.repeat_shard(host(4), 2, 2, 0, sharded_tensor="mixed")),
    "a pipeline with too few steps": (ValueError, lambda p: pipeline(p, 2, True)),
    "an op without a stage": (RuntimeError, lambda p: pipeline(p, 4, False)),
    "a data loader that saves nothing": (ValueError, lambda p: setattr(task(p), "dataloader", object())),
    "a checkpoint that is not there": (FileNotFoundError, lambda p: task(p).load_checkpoint(str(p.folder / "none"))),
    "a name that is not there": (AttributeError, lambda p: addons.NamedTensors(a=p.x).b),
}

TABLES = {"graphs": GRAPHS, "calls": CALLS, "data": DATA, "ops": OPS, "runs": RUNS, "addons": ADDONS}


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, cases in TABLES.items() for name in cases], ids=lambda text: text
)
def test_what_upstream_refuses(table: str, name: str, tmp_path: Path) -> None:
    error, act = TABLES[table][name]
    p = program()
    p.folder = tmp_path
    with pytest.raises(error), nullcontext() if table == "runs" else p.ir.main_graph:
        act(p)
