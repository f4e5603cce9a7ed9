"""What PopXL's public functions answer and write into a program: as asked for, and with each argument spoiled in turn.

A golden text has the answers of some calls, each with the program afterwards.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from answers import answer, called_lines, listed, spoiled_lines, together
from rows import Golden

from ipuperf import popxl
from ipuperf.ir import format_schedule
from ipuperf.ir.printing import dot_text
from ipuperf.popxl import fp8_utils, ops, random_seed, transforms, utils
from ipuperf.popxl.ops import collectives, var_updates

pytestmark = pytest.mark.filterwarnings("ignore")  # arguments without effect

TABLE = """
popxl.variable(host, popxl.float16, "v")
popxl.variable([1.5, 2], name="v", retrieval_mode="all_replicas")
popxl.variable(host[:2], replica_grouping=ir.replica_grouping(group_size=2))
popxl.variable(host, replica_grouping=ir.replica_grouping(group_size=1))
popxl.variable(np.float64([1]), downcast=False)
popxl.variable(host, popxl.float8_143, log2_scale=1, nan_on_overflow=True)
popxl.constant(host, popxl.float16, "c")
popxl.constant(3)
popxl.constant([True, False])
popxl.constant(host, popxl.float8_152, log2_scale=2, nan_on_overflow=False)
popxl.create_seeds(7, 1, 2, 3, 4)
popxl.create_seeds(7)
popxl.create_seeds(7, replicas=2)
popxl.create_seeds(2 ** 33, batches_per_step=2)
popxl.d2h_stream((2, 3), popxl.float32, "out")
popxl.h2d_stream((2, 3), popxl.float16)
popxl.remote_buffer((2, 3), popxl.float32, 2)
popxl.replica_sharded_buffer((2, 4), popxl.float32, entries=2)
popxl.replica_sharded_buffer((2, 4), popxl.float32, ir.replica_grouping(group_size=2), 2, 1)
popxl.replica_sharded_buffer((2, 4), popxl.float32, shard_over=2)
popxl.remote_variable(host, buffer, 1, popxl.float32, "r")
popxl.remote_replica_sharded_variable(host, sharded, 0, popxl.float32, "r")
popxl.replica_sharded_variable(host, popxl.float32, "s")
popxl.replica_sharded_variable(host, popxl.float32, "s", shard_over=2)
popxl.replica_sharded_variable(host, replica_grouping=ir.replica_grouping(group_size=2), shard_over=2)
ir.replica_grouping(1, 2)
ir.replica_grouping(2, 2)
ir.replica_grouping(stride=2)
ir.replica_grouping()
ir.replica_grouping_from_assignments([0, 1, 1, 0])
ir.replica_grouping_from_assignments([0, 1, 0, 1])
ir.replica_grouping(1, 2).transpose()
ir.replica_grouping(1, 2).to_device_map, ir.replica_grouping(2, 2).to_host_map
ir.replica_grouping(2, 2).assignment
[(g.stride, g.group_size, g.num_groups, g.num_replicas, g.is_const) for g in (ir.replica_grouping(1, 2), ir.replica_grouping(2))]
ir.replica_grouping(1, 2) == ir.replica_grouping(1, 2), ir.replica_grouping(1, 2) != ir.replica_grouping(2, 2)
ir.create_graph(lambda t, u: t + u, x, y)
ir.create_graph(lambda t: (t, t * 2), popxl.TensorSpec((2, 4), popxl.float32))
ir.create_graph(lambda t, n=2: t * n, x, n=3)
ir.create_empty_graph("g")
ir.num_host_transfers, ir.num_io_tiles, ir.replication_factor, ir.instance_replication_factor
ir.get_all_h2d_streams(), ir.get_all_d2h_streams()
setattr(ir, "num_host_transfers", 3); ir.num_host_transfers
setattr(ir, "num_io_tiles", 32); ir.num_io_tiles
setattr(ir, "replication_factor", 2); ir.replication_factor
popxl.Ir(2).replica_grouping()
popxl.Ir(0).main_graph
graph.name, graph.id, graph.inputs, graph.outputs, graph.tensors, graph.variables, graph.constants, graph.called_graphs
graph.get_tensor("x"), graph.inputs_by_name
graph.get_tensor("nothing")
graph.print_schedule()
graph == ir.main_graph, graph.ir == ir, graph.main_graph
x.id, x.name, x.scope, x.dtype, x.spec, x.shape, x.meta_shape, x.rank, x.nelms, x.ipu, x.tile_set, x.in_sync_with_ipu
w.replica_grouping, w.retrieval_mode, w.shape_on_replica, w.shape_on_host, w.strides()
x.T, x.T_
x.transpose((1, 0)), x.transpose_((1, 0)), x.reshape((4, 2)), x.reshape_((8,)), x.flatten(), x.flatten_(), x.detach(), x.detach_()
x.copy_to_ipu(1, 0)
x[0], x[:, 1:3], x[-1, ::2], x[..., 0]
x[2]
x[0:1, 0, 0]
-x, x + 1, 1 - x, x * y, 2 / x, x ** 2, x % 2, x == y, x > y, ~(x > y), (x > y) & (y > x), (x > y) | (y > x)
x @ y.T
[(d.name, d.is_floating_point, d.is_int, d.is_signed, d.is_complex) for d in (popxl.float16, popxl.int8, popxl.uint64, popxl.bool, popxl.float8_143)]
popxl.dtype.as_dtype("float32"), popxl.dtype.as_dtype(np.int8), popxl.dtype.as_dtype(bool), popxl.float16.as_numpy()
popxl.dtype.as_dtype("floatx")
popxl.dtype.from_name("nothing")
popxl.TensorSpec((2, 3), popxl.float32, (4, 3)), popxl.TensorSpec((2,), popxl.int8).nelms
popxl.TensorSpec((2, 3), popxl.float32).to_dict(), popxl.TensorSpec((2, 3), popxl.float32).to_tuple()
popxl.graph_input((2,), popxl.float32, "i", True, (4,))
popxl.graph_output(x)
buffer.entries, buffer.tensor_shape, buffer.tensor_dtype, buffer.meta_shape, buffer.remote_buffer_id
buffer.validate_tensor_matches_buffer(x)
buffer.validate_tensor_matches_buffer(x.T)
setattr(buffer, "entries", 5); buffer.entries
setattr(buffer, "entries", 0)
popxl.TensorLocation(popxl.TensorStorage.OffChip, popxl.TileSet.IO)
popxl.create_seeds(-1)
ops.argmax(x, 1, True)
ops.argmin(x, -1, False)
ops.average_pool(image, (2, 2), (1, 1), (0, 0, 1, 1))
ops.max_pool(image, (2, 2), None, (0, 0, 0, 0), ceil_mode=True)
ops.batch_norm_inference(image, one, one, one, one, 1e-3, 0.5)
ops.call(graph, x)
ops.call_with_info(graph, x).outputs
ops.call_with_info(graph, inputs_dict={graph.inputs[0]: x}, check_inputs=True).inputs
ops.repeat(graph, 3, x)
ops.repeat_with_info(graph, 2, x).outputs
ops.conditional(flag, graph, graph, [x], [y])
ops.conditional_with_info(flag, graph, graph, then_inputs=[x], else_inputs=[y]).outputs
ops.cast(x, popxl.float16)
ops.clamp(x, 0.5, 2)
ops.clip(x, None, 1)
ops.concat([x, y], 1)
ops.concat([x, y])
ops.concat_([x, y], 0)
ops.conv(image, kernel, (2, 2), (0, 0, 1, 1), (1, 1), 1, "not_set", [0.5], ["half"], [1])
ops.conv(image, kernel)
ops.conv(image, kernel, pad_type="same_upper")
ops.conv_transpose(image, kernel, (2, 2), (0, 0, 0, 0), (1, 1), 1, "not_set", (0, 0), ())
ops.cumsum(x, 1)
ops.dropout(x, seed, 0.25)
ops.shaped_dropout(x, seed, (2, 1), 0.25)
ops.dynamic_slice(x, index, [0], [1], True)
ops.dynamic_update(x, index, row, [0], [1], False)
ops.dynamic_update_(x, index, row, [0], [1], True)
ops.gather(x, numbers, 0, 0.5, True)
ops.tied_gather(x, numbers, 0)
ops.groupedgather(x3, numbers2, 0, 2)
ops.group_norm(x, w4, w4, 2, 1e-3)
ops.layer_norm(x, w4, w4)
ops.histogram(x, [0.5, 1.5], True)
ops.host_load(inputs, "loaded")
ops.host_store(outputs, x)
ops.identity(x, "same")
ops.rename(x, "new")
ops.increment_mod(numbers, 1, 3)
ops.increment_mod_(numbers, 2, 5)
ops.init((2, 3), popxl.float16, "zeros", "undef")
ops.init((2, 3), popxl.float16)
ops.interpolate(image, (1, 1, 2, 2), "nearest", "floor", "asymmetric")
ops.interpolate(image)
ops.io_tile_copy(x)
ops.ipu_copy(x, 1, 0)
ops.logsumexp(x, -1, True)
ops.l1(x, 0)
ops.median(x, 1)
ops.max(x, None, True)
ops.matmul(x, y.T, 0.5, popxl.float16, popxl.float32)
ops.matmul(x, y.T)
ops.matmul_pow2scaled(f8, f8.T, scale)
ops.maximum(x, y, 1)
ops.nll_loss(probs, labels, 1, "sum", True)
ops.nll_loss(probs, labels)
ops.nll_loss_with_softmax_grad(probs, labels, 2.0, 0, "mean")
ops.nll_loss_with_softmax_grad(probs, labels)
ops.onehot(numbers, popxl.constant(4), popxl.constant([0.0, 1.0]), 1)
ops.pow2scale_cast_from_fp8(f8, scale, popxl.float32)
ops.pow2scale_cast_to_fp8(ops.cast(x, popxl.float16), scale)
ops.print_tensor(x, "title", True, False, 10, 2, 40, 3, "fixed", ",", "(", ")")
ops.print_tensor(x)
ops.random_normal(seed, (2, 3), 1.0, 2.0, popxl.float16)
ops.random_uniform(seed, (2, 3), -1, 1)
ops.random_uniform(seed, (2,))
ops.remote_load(buffer, 1, "loaded")
ops.remote_load_(buffer, 0, x)
ops.remote_store(buffer, index, x)
ops.remote_code_load(graph, "executable")
ops.reshape(x, (4, -1))
ops.reshape_(x, (2, 2, 2))
ops.roi_align(image, rois, numbers, (2, 2), 0.5, 2)
ops.scaled_add(x, y, 2, w1)
ops.scaled_add(x, y)
ops.scaled_add_(x, y, 0.5, 3)
ops.scatter(x, popxl.constant([[0, 1, 1, 0]]), row, 0)
ops.scatter_reduce(x, popxl.constant([0, 0]), "max", None, 0, 2, True)
ops.slice(x, 0, 4, 2, 1)
ops.slice(x, [0, 1], [1, 3])
ops.slice_(x, 1, None, None, 0)
ops.softmax(x, 1)
ops.split(x, 2, 1)
ops.split(x, [1, 3], 1)
ops.split_random_seed(seed, 3)
ops.split_random_seed(seed)
ops.squeeze(row, 0)
ops.squeeze(row)
ops.subsample(x, [1, 2])
ops.sum(x, [0, 1], True)
ops.sumsquare(x)
ops.topk(x, 2, 1, True, False)
ops.transpose(x, (1, 0))
ops.where(x > 1, x, 0)
ops.add_(x, 1)
ops.relu_(x)
ops.logical_and(flag, flag)
collectives.all_reduce([x, on1], [0, 1], "add")
collectives.all_reduce([x, on1])
collectives.all_reduce_identical_inputs([x, on1], [0, 1])
collectives.all_reduce_identical_grad_inputs([x, on1])
collectives.replicated_all_reduce(x, "max", ir.replica_grouping(group_size=2))
collectives.replicated_all_reduce_(x)
collectives.replicated_all_gather(x, 1, ir.replica_grouping(group_size=2), "new_axis")
collectives.replicated_all_gather(x)
collectives.replicated_reduce_scatter(x, "local", None, True)
collectives.replicated_reduce_scatter(x)
collectives.replica_sharded_slice(x)
collectives.replicated_slice(x, 1)
collectives.CommGroup(collectives.CommGroupType.Consecutive, 2)
collectives.replicated_all_reduce(x, "add", collectives.CommGroup(collectives.CommGroupType.Orthogonal, 2))
var_updates.accumulate_(w, y, 0.5)
var_updates.accumulate_(w, y)
var_updates.accumulate_mean_(w, y, 3.0)
var_updates.accumulate_moving_average_(w, y, 0.9)
var_updates.accumulate_moving_average_square_(w, y, w1)
var_updates.accumulate_square_(w, y)
var_updates.accumulator_scale_(w, 0.5)
var_updates.accumulator_zero_(w)
var_updates.adam_updater(x, y, w, step, 0.1, 0.9, 0.99, 1e-5)
var_updates.adam_updater(x, y)
var_updates.adamax_updater(x, y, w, step)
var_updates.lamb_updater(x, y, None, step, None, 0.9, 0.99)
var_updates.adam_var_update(w, y, w1, w1, 0.1, 2.0)
var_updates.adam_var_update(w, y, w1, w1)
var_updates.copy_var_update_(w, y)
var_updates.sparse_accumulate_(w, row, popxl.constant([1]), 0, 0.5)
transforms.autodiff(graph, graph.outputs, graph.inputs).outputs
transforms.autodiff(graph)
transforms.autodiff(graph, return_all_grad_graphs=True)
transforms.decompose_sum(graph)
transforms.ExpectedConnection(transforms.ExpectedConnectionType.Fwd, x)
utils.to_numpy([1.5, 2], popxl.float16)
utils.to_numpy(host, popxl.int32)
utils.to_numpy(host, None, True, False)
utils.to_numpy([2 ** 40])
f = fp8_utils.host_pow2scale_cast_to_fp8(host); [np.shares_memory(data, utils.to_numpy(data, copy=c)) for data in (f, host) for c in (True, False)], np.shares_memory(f, utils.to_numpy(f))
utils.table_to_string([["a", 1], ["bcd", 22]], " | ")
utils.table_to_string([])
random_seed.uint64_to_two_uint32(2 ** 40 + 7)
random_seed.two_uint32_to_uint64(1, 2)
fp8_utils.host_pow2scale_cast_to_fp8(host, popxl.float8_152, 1, False)
fp8_utils.host_pow2scale_cast_to_fp8(1e6 * host)
fp8_utils.host_pow2scale_cast_from_fp8(np.arange(6, dtype=np.uint8).view(popxl.float8_143.as_numpy()), popxl.float16, -1)
fp8_utils.host_fp8_mse_scale(host, popxl.float8_152)
fp8_utils.host_fp8_mse_scale_pb(100 * host)
list(map(repr, ops.split(x, 4, 1)))
context("ipu", 1); ops.add(x, 1)
context("io_tiles"); ops.init((2,), popxl.float32)
context("name_scope", "a"); context("name_scope", "b"); popxl.variable(1.0, name="v")
context("in_sequence", False); x + 1
popxl.gcg(), popxl.gmg(), popxl.gir() == ir
i = ops.call_with_info(graph, x); [f(0) for f in (i.graph_to_parent_input_index, i.parent_to_graph_input_index, i.graph_to_parent_output_index, i.parent_to_graph_output_index, i.parent_input, i.parent_output)], i.called_graph, i.inputs, i.outputs
i = ops.call_with_info(graph, x); i.graph_to_parent(graph.inputs[0]), i.graph_to_parent(graph.outputs[0]), i.parent_to_graph(x), i.parent_to_graph(i.outputs[0])
i = ops.call_with_info(graph, x); i.graph_to_parent(y)
i = ops.call_with_info(graph, x); i.parent_to_graph(y)
i = ops.call_with_info(graph, x); i.graph_to_parent_input_index(1)
i = ops.call_with_info(graph, x); i.parent_output(1)
i = ops.call_with_info(graph, x); i.set_parent_input_modified(x)
i = ops.call_with_info(graph, x); i.set_parent_input_modified(y)
i = ops.repeat_with_info(pair, 2, x, y); [[f(n) for n in range(2)] for f in (i.graph_to_parent_input_index, i.parent_to_graph_input_index, i.graph_to_parent_output_index, i.parent_to_graph_output_index, i.parent_input, i.parent_output)], i.called_graph
i = ops.repeat_with_info(pair, 2, x, y); i.graph_to_parent(pair.inputs[1]), i.parent_to_graph(x), i.parent_to_graph(i.outputs[1])
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); [i.is_parent_index_in_then_branch(n) for n in range(1, 6)], [i.parent_to_graph_input_index(n) for n in range(1, 6)], [i.graph_to_parent_input_index(n, True) for n in range(2)], [i.graph_to_parent_input_index(n, False) for n in range(3)], i.called_graph
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); [i.graph_to_parent_output_index(n, b) for n in range(2) for b in (True, False)], [i.parent_to_graph_output_index(n, b) for n in range(2) for b in (True, False)], [i.parent_input(n) for n in range(6)], i.parent_output(1)
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); [i.graph_to_parent(t) for t in (*pair.inputs, *pair.outputs, *other.inputs, *other.outputs)], [i.parent_to_graph(t) for t in (x, y, w, *i.outputs)]
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); i.is_parent_index_in_then_branch(0)
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); i.is_parent_index_in_then_branch(6)
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); i.graph_to_parent_input_index(2, True)
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); i.graph_to_parent_output_index(2, False)
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); i.parent_to_graph_output_index(-1, False)
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); i.graph_to_parent(w)
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); i.parent_to_graph(index)
i = ops.conditional_with_info(flag, pair, other, [x, y], [w, x, y]); i.set_parent_input_modified(x)
ops.conditional(flag, pair, graph, [x, y], [w])
ops.conditional(flag, pair, other, then_inputs_dict=dict(zip(pair.inputs, (x, y))), else_inputs_dict=dict(zip(other.inputs, (x, y, w))))
ops.add(1, 2.5), ops.add(x, 3), ops.add(3, x), ops.init(3, popxl.float32), ops.init(np.int64(3), popxl.float32)
popxl.RemoteBuffer((1,), popxl.float32, 1, (0, 2)).meta_shape, popxl.RemoteBuffer((0,), popxl.float32, 1).tensor_shape
popxl.RemoteBuffer((1,), popxl.float32, 1, (-1,))
popxl.RemoteBuffer((-1,), popxl.float32, 1)
popxl.RemoteBuffer((1,), popxl.float32, 0)
buffer == buffer, buffer == sharded, buffer == 3, len({buffer, buffer}), setattr(buffer, "meta_shape", (2, 4)), buffer.meta_shape, sharded.meta_shape
spec == popxl.TensorSpec([2, 3], popxl.float32), spec == popxl.TensorSpec((2, 3), popxl.float16), spec == 3, len({spec, popxl.TensorSpec((2, 3), popxl.float32)}), len(spec), list(spec), spec["shape"], spec.spec, spec.nelms
x in graph, graph.inputs[0] in graph, "x" in graph, "w" in ir.main_graph
3 in graph
x.ir == ir, x.location_info == "", w.location_info, x.tile_set, x.ipu, x.strides(), x.strides((2, 3, 4)), w.in_sync_with_ipu, y.in_sync_with_ipu
popxl.graph_input((2,), popxl.float32).ipu
popxl.graph_input((2,), popxl.float32).tile_set
x == x, x != y, hash(x) == hash(x), x.__eq__(3)
popxl.complex64
popxl.dtypes.nothing
"""  # noqa: E501


@contextmanager
def program() -> Iterator[dict[str, Any]]:
    """The names that the expressions use, in a new program on four replicas whose main graph is open."""
    ir = popxl.Ir(4)
    host = np.arange(8, dtype=np.float32).reshape(2, 4)
    with ExitStack() as stack:
        context = lambda name, *given: stack.enter_context(getattr(popxl, name)(*given))  # noqa: E731
        stack.enter_context(ir.main_graph)
        context("in_sequence")
        w = popxl.variable(host, name="w")
        with popxl.ipu(1):
            on1 = ops.init((2, 4), popxl.float32, "on1")
        yield {
            "ir": ir, "popxl": popxl, "ops": ops, "collectives": collectives, "var_updates": var_updates, "np": np,
            "transforms": transforms, "utils": utils, "random_seed": random_seed, "fp8_utils": fp8_utils, "host": host,
            "context": context, "w": w, "on1": on1, "x": ops.add(w, 1), "y": popxl.constant(host, name="y"),
            "graph": ir.create_graph(lambda x: ops.tanh(x) * 2, w), "spec": popxl.TensorSpec((2, 3), popxl.float32),
            "pair": ir.create_graph(lambda a, b: (a + b, b), w, w),
            "other": ir.create_graph(lambda a, b, c: (a, b * c), w, w, w),
            "image": popxl.variable(np.ones((1, 2, 4, 4), np.float32), name="image"),
            "kernel": popxl.variable(np.ones((2, 2, 3, 3), np.float32), name="kernel"),
            "one": popxl.variable(np.ones(2, np.float32)), "w4": popxl.variable(np.ones(4, np.float32)),
            "w1": popxl.variable(np.float32(0.5)), "seed": popxl.variable([1, 2], popxl.uint32),
            "index": popxl.variable([1], popxl.uint32), "numbers": popxl.variable([0, 1], popxl.int32),
            "numbers2": popxl.variable([[0, 1], [1, 0]], popxl.int32), "flag": popxl.variable([True], popxl.bool),
            "row": popxl.variable(host[:1]), "x3": popxl.variable(np.ones((2, 2, 3), np.float32)),
            "probs": popxl.variable(np.full((2, 4), 0.25, np.float32)), "labels": popxl.variable([1, 3], popxl.int32),
            "f8": popxl.variable(host, popxl.float8_143), "scale": popxl.constant(1, popxl.int32),
            "step": popxl.variable(np.float32(1)), "rois": popxl.variable(np.ones((2, 4), np.float32)),
            "buffer": popxl.remote_buffer((2, 4), popxl.float32, 2),
            "sharded": popxl.replica_sharded_buffer((2, 4), popxl.float32),
            "inputs": popxl.h2d_stream((2, 4), popxl.float32, "in"),
            "outputs": popxl.d2h_stream((2, 4), popxl.float32, "out"),
        }  # fmt: skip


@together(listed(TABLE))
def test_every_call(cases: list[str], golden: Golden) -> None:
    lines = []
    for case in cases:
        with program() as names:
            lines += called_lines(case, names, names["ir"]._ir)
    golden(lines)


@together(dict.fromkeys(line for line in listed(TABLE) if "(" in line and "context(" not in line))
def test_every_spoiled_call(cases: list[str], golden: Golden) -> None:
    lines = []
    for case in cases:
        with program() as names:
            lines += spoiled_lines(case, names, names["ir"]._ir)
    golden(lines)


def test_graphs_as_text(golden: Golden) -> None:
    with program() as names:
        p = SimpleNamespace(**names)
        ops.call_with_info(p.graph, p.x)
        base = p.ir._ir.main_graph
        golden({"schedule": format_schedule(base, {}), "dot": dot_text(base),
                    "graph": repr(p.graph), "op": answer(lambda: base.ops[0])})  # fmt: skip
