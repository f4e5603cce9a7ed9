"""What builds and changes graphs, names and places: contexts, variables, remote buffers, layers, counts of operations.

Each case puts the function into a small program whose value says whether the function did what it should.
"""

import contextlib
import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ipuperf.popxl as popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops

from .base import Case, Drawn, shape_of
from .networks import _image

F = torch.nn.functional
HERE = ("main", "stream", "call", "repeat")


def _any(r: random.Random) -> Drawn:
    return [["normal", shape_of(r, 1), "any"]], {}


def _same(x: Any) -> Any:
    return x


def _case(build: Any, oracle: Any = _same, draw: Any = _any, **more: Any) -> Case:
    return Case(draw, oracle, build, **{"gradient": False, "dtypes": ("float32",), "around": HERE, **more})


def _context(*arguments: Any) -> Callable[..., Any]:
    """The value, computed within a context."""

    def build(f: Any, x: Any) -> Any:
        with f(*arguments):
            return x * 1.0

    return build


# -- graphs of PopXL ---------------------------------------------------------------------------------------------------


def _loaded_code(f: Any, x: Any) -> Any:
    graph = popxl.gir().create_graph(lambda t: t * 2.0, x)
    f(graph, "executable")
    return ops.call(graph, x)[0]


def _exchanged(f: Any, x: Any) -> Any:
    """A tensor goes to a remote buffer, and comes back on the I/O tiles."""
    popxl.gir().num_io_tiles = 32
    buffer = popxl.remote_buffer(x.shape, x.dtype, 1)
    ops.remote_store(buffer, 0, x)
    with f():
        loaded = ops.remote_load(buffer, 0)
    return ops.io_tile_copy(loaded)


def _seeds(r: random.Random) -> Drawn:
    counts = [r.randint(1, 3) for _ in range(3)]
    names = ("batches_per_step", "gradient_accumulation_factor", "replicas")
    return [["normal", [], "any"]], {"seed": r.randint(0, 99), **dict(zip(names, counts))}


def _words(x: Any, seed: int, batches_per_step: int, gradient_accumulation_factor: int, replicas: int) -> Any:
    """Two words of each number of NumPy's generator."""
    lead = [n for n in (batches_per_step, gradient_accumulation_factor, replicas) if n > 1]
    numbers = np.random.default_rng(seed).integers(0, 2**64 - 1, lead, np.uint64, endpoint=True)
    return torch.tensor(np.stack([numbers >> np.uint64(32), numbers & np.uint64(2**32 - 1)], -1).astype(np.int64))


POPXL = {
    "get_current_graph": _case(lambda f, x: _context()(f, x)),
    "get_main_graph": _case(lambda f, x: _context()(f, x), around=("main",)),
    "name_scope": _case(_context("scope")),
    "create_seeds": _case(lambda f, x, **a: f(**a), _words, _seeds, around=("host",)),
    "ops.remote_code_load": _case(_loaded_code, lambda x: 2 * x, around=("main",)),
    "transforms.io_tile_exchange": _case(_exchanged, around=("main",)),
}


# -- graphs of addons --------------------------------------------------------------------------------------------------


def _function(f: Any, x: Any) -> Any:
    doubled = f(lambda t: t * 2.0)
    return ops.add(doubled(x)[0], doubled(x)[0])


def _gradient_info(f: Any, x: Any) -> Any:
    """The gradient of ``x * x``, as a graph of one's own."""
    ir = popxl.gir()
    forward = ir.create_graph(lambda t: t * t, x)
    backward = ir.create_graph(lambda dy, t: dy * t * 2.0, x.spec, x.spec)
    (y,), (dy, t) = forward.outputs, backward.inputs
    (leaf,) = forward.inputs
    info = f(ir, forward, backward, {dy: y, t: leaf}, {backward.outputs[0]: leaf}, [leaf])
    site = ops.call_with_info(forward, x)
    ones = popxl.constant(np.ones(x.shape, np.float32))
    return ops.call(info.graph, ones, inputs_dict=info.inputs_dict(site))[0]


def _differentiated(f: Any, x: Any) -> Any:
    graph = popxl.gir().create_graph(ops.tanh, x)
    back = f(graph)
    site = ops.call_with_info(graph, x)
    ones = popxl.constant(np.ones(x.shape, np.float32))
    return back.call(ones, args=back.grad_graph_info.inputs_dict(site))[0]


def _with_variable(f: Any, x: Any) -> Any:
    """A graph with an input whose variable its factory makes."""
    graph = popxl.gir().create_empty_graph("sum")
    with graph:
        t = popxl.graph_input(x.shape, x.dtype)
        w, factory = f("w", lambda: np.full(x.shape, 3.0, np.float32))
        popxl.graph_output(t + w)
    return ops.call(graph, x, factory.create_tensor())[0]


def _routed(f: Any, x: Any) -> Any:
    graph = popxl.gir().create_empty_graph("inner")
    with graph:
        t = popxl.graph_input(x.shape, x.dtype)
        inner = t * 2.0
        popxl.graph_output(inner)
    (y,) = ops.call(graph, x)
    with graph:
        graph._base.outputs[0] = (inner + f(x))._ir_tensor
    return y


def _contained(f: Any, x: Any) -> Any:
    inner = popxl.gir().create_graph(lambda t: t * 2.0, x)
    (y,) = ops.call(inner, x)
    return y * float(f(popxl.gcg(), inner)) * float(not f(inner, popxl.gcg()))


def _thrice(f: Any, x: Any) -> Any:
    with popxl.gir().create_empty_graph("counting") as graph:
        t = popxl.graph_input(x.shape, x.dtype, by_ref=True)
        ops.var_updates.accumulate_(t, popxl.constant(np.ones(x.shape, np.float32)))
    f(graph, 3)
    value = x * 1.0
    ops.call(graph, value)
    return value


class Doubling(addons.Module):
    """Twice its input."""

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        return x * 2.0


def _in_steps(f: Any, x: Any) -> Any:
    """Two entries of a remote buffer are doubled."""
    _, graph = Doubling().create_graph(x)
    buffers = [addons.batch_serial_buffer(x, 2) for _ in range(2)]
    source, target = graph.graph.inputs[0], graph.graph.outputs[0]
    made = f(graph, 2, {source: (buffers[0], 0)}, {}, {target: (buffers[1], 0)}, io_mode="compute")
    for step in range(2):
        ops.remote_store(buffers[0], step, x + float(step))
    made.graph.bind().call(0)
    return tuple(ops.remote_load(buffers[1], step) for step in range(2))


# -- remote buffers and shards -----------------------------------------------------------------------------------------


def _named(x: Any) -> Any:
    return addons.NamedTensors(a=x, b=x * 2.0)


def _factories(x: Any) -> Any:
    return addons.NamedVariableFactories(a=addons.VariableFactory(lambda: np.zeros(x.shape, np.float32), name="a"))


def _there_and_back(buffers: Any, x: Any) -> Any:
    addons.remote.store_remote(buffers, addons.NamedTensors(a=x), 0)
    ops.identity(x)  # stores and loads are blocks without order inside: two in a row are one
    return addons.remote.load_remote(buffers, 0).a


def _one_buffer(f: Any, x: Any) -> Any:
    buffer = f(x.spec, 2)
    ops.remote_store(buffer, 1, x)
    return ops.remote_load(buffer, 1)


def _by_graphs(f: Any, x: Any) -> Any:
    """Stored and loaded by graphs that take the entry."""
    buffers = addons.named_buffers(_named(x), 2)
    addons.store_remote_graph(buffers, 2).bind(_named(x)).call(1)
    graph, names = addons.load_remote_graph(buffers, 2)
    found = addons.NamedTensors.pack(names, graph.call(1))
    return found.a, found.b


def _shards(f: Any, x: Any) -> Any:
    """The sum of both replicas in shards, put together again."""
    graph, names = addons.reduce_replica_sharded_graph(addons.NamedTensors(a=x))
    shards = addons.NamedTensors.pack(names, graph.bind(addons.NamedTensors(a=x)).call())
    graph, _ = addons.all_gather_replica_sharded_graph(shards)
    return graph.bind(shards).call()[0]


def _even(r: random.Random) -> Drawn:
    return [["normal", [2 * r.randint(1, 4)], "any"]], {}


def _across(build: Any, oracle: Any) -> Case:
    return _case(build, oracle, _even, around=("stream",), across=True)


def _spec(f: Any, x: Any) -> Any:
    return popxl.constant(f(x, threshold=1).shape, popxl.int32)


ON_TWO = {
    "all_gather_replica_sharded_graph": _across(_shards, lambda xs: [sum(xs)] * 2),
    "replica_sharded_spec": _across(_spec, lambda xs: [torch.tensor([len(x) // 2]) for x in xs]),
    "reduce_replica_sharded_graph": _across(_shards, lambda xs: [sum(xs)] * 2),
}


# -- groups of replicas ------------------------------------------------------------------------------------------------


def _sized(function: Callable[[Any], Any]) -> Case:
    """What a function says of groups, as a number: in one process and one IPU-Link domain all is within."""
    return _case(
        lambda f, x: x * 1.0 + float(function(f)), lambda x: x + 1.0, around=("main",)
    )  # with one replica each group has one member


GROUPS = {
    "fill_none_group": _sized(lambda f: f(None, popxl.gir().replica_grouping()).group_size),
    "get_instance_replica_grouping": _sized(lambda f: f().group_size),
    "is_cross_instance": _sized(lambda f: not f(popxl.gir().replica_grouping())),
    "get_ild_size_from_popdist": _sized(lambda f: f()),
    "get_ild_replica_grouping": _sized(lambda f: f().group_size),
    "is_cross_ild": _sized(lambda f: not f(popxl.gir().replica_grouping())),
}

# -- what is counted, printed, named -----------------------------------------------------------------------------------


def _product(r: random.Random) -> Drawn:
    n, k, m = (r.randint(1, 5) for _ in range(3))
    return [["normal", [n, k], "any"], ["normal", [k, m], "any"]], {}


def _counted(count: Callable[[Any], Any]) -> Case:
    def build(f: Any, x: Any, y: Any) -> Any:
        product = x @ y
        return product, popxl.constant(count(f), popxl.int32)

    def value(x: Any, y: Any) -> Any:
        return x @ y, torch.tensor(2 * x.shape[0] * x.shape[1] * y.shape[1])

    return _case(build, value, _product, around=("main",))


def _printed(f: Any, x: Any, y: Any) -> Any:
    """The table of the operations names products."""
    product, text = x @ y, io.StringIO()
    with contextlib.redirect_stdout(text):
        f(addons.evaluate_ir_FLOPs(popxl.gir()))
    return product * float("MatMul" in text.getvalue())


def _said(f: Any, x: Any) -> Any:
    f("text")
    return x * 1.0


def _configured(*arguments: Any) -> Case:
    """Of no effect on values."""
    return _case(lambda f, x, y: (f(popxl.gir(), *arguments), x @ y)[1], torch.matmul, _product, around=("main",))


def _text(build: Callable[[Any], str], expected: str) -> Case:
    """A text, as numbers."""
    return _case(
        lambda f, x: np.array([ord(letter) for letter in build(f)]),
        lambda x: torch.tensor([ord(letter) for letter in expected]),
        around=("host",),
    )


def _mapped(f: Any) -> str:
    tree = addons.dot_tree.DotTree
    return str(f(tree.from_dict({"a": 1, "b.c": 2}), tree.from_dict({"b.c": 3, "a": 4})))


NAMES = {
    "total_FLOPs": _counted(lambda f: f(popxl.gir())),
    "evaluate_FLOPs": _counted(lambda f: f(popxl.gcg())["TOT"]),
    "evaluate_ir_FLOPs": _counted(lambda f: f(popxl.gir())["TOT"]),
    "print_FLOPs": _case(_printed, torch.matmul, _product, around=("main",)),
    "print_text": _case(_said, around=("main",)),
    "named_tensors.print_named_tensors": _case(lambda f, x: f(addons.NamedTensors(a=x)).a),
    "timer": _case(_context("title")),
    "set_available_memory_proportion_by_ipu": _configured([0.4]),
    "set_graph_available_memory_proportion_by_ipu": _case(
        lambda f, x, y: (x @ y, f(popxl.gcg(), [0.4]))[0], torch.matmul, _product, around=("main",)
    ),
    "enable_fc_pass": _configured(),
    "disable_fc_pass": _configured(),
    "patterns.apply_pre_alias_patterns": _configured(),
    "format_flops_scientific": _text(lambda f: f(2.5e9, "G"), "2.500E+09"),
    "suffix_graph_name": _text(lambda f: f("layer_subgraph(3)", "grad"), "layer_grad"),
    "dot_tree.sanitise": _text(lambda f: f("0 a.b"), "_0_a_b"),
    "dot_tree.to_mapping": _text(_mapped, "{1: 4, 2: 3}"),
    "graph_cache.bound_arguments": _text(lambda f: str(f(lambda a, b=2: a, 1)), "{'a': 1, 'b': 2}"),
    "utils.overrides": _text(lambda f: str(f(Doubling, addons.Module, "build")), "True"),
    "utils.duplicate_items": _text(lambda f: str(f([1, 2, 1, 3, 2])), "[1, 2]"),
    "testing_utils.ops_of_type": _text(lambda f: str(f([1, "a", 2], int)), "2"),
}

# -- programs and layers -----------------------------------------------------------------------------------------------


def _module_run(f: Any, x: Any) -> Any:
    return f(Doubling(), addons.testing_utils.TensorInput(x))[0]


def _own_session(f: Any, x: Any) -> Any:
    """A program with its own streams."""
    ir = popxl.Ir()
    with ir.main_graph:
        data, source, t = addons.host_load(x)
        target = addons.host_store(t * 2.0)
    with popxl.Session(ir, "ipu_hw") as session:
        return session.run({source: data})[target]


def _layer(draw: Any, arguments: Callable[..., Any], oracle: Any, **more: Any) -> Case:
    """A layer with random weights, which come back beside its value; the oracle takes them."""

    def build(f: Any, *tensors: Any, **given: Any) -> Any:
        factories, graph = f(**arguments(**given)).create_graph(*tensors)
        weights = factories.init()
        return *graph.bind(weights).call(*tensors), *weights.to_dict().values()

    def value(got: list[Any], *tensors: Any, **given: Any) -> Any:
        return oracle(*tensors, *got[1:], **given), *got[1:]

    return _case(build, value, draw, random=True, around=("main",), **more)


def _filtered(r: random.Random) -> Drawn:
    return [["normal", _image(r, 2), "any"]], {"out_channels": r.randint(1, 3), "kernel_size": r.randint(1, 3)}


def _looked_up(r: random.Random) -> Drawn:
    return [["index", shape_of(r, 1, 2), "int32", 5]], {"hidden_size": r.randint(1, 4)}


def _wide(r: random.Random) -> Drawn:
    return [["normal", [r.randint(1, 4), r.randint(3, 6)], "any"]], {}


def _convolved(x: Any, *weights: Any, out_channels: int, kernel_size: int) -> Any:
    bias, weight = weights
    return F.conv2d(x, weight) + bias.reshape(1, -1, 1, 1)


def _linear(x: Any, *weights: Any, out_features: int) -> Any:
    weight, bias = sorted(weights, key=lambda w: -w.dim())
    return x @ weight + bias


def _features(r: random.Random) -> Drawn:
    return [["normal", [r.randint(1, 4), 8], "any"]], {"out_features": r.randint(1, 4)}


def _in_groups(r: random.Random) -> Drawn:
    size, dim = 4 * r.randint(1, 2), r.choice([-1, 0, 1])
    wide, other = size * r.randint(1, 3), r.randint(1, 5)
    k, m = (wide, other) if dim == 0 else (other, wide)
    operands = [["normal", [r.randint(1, 4), k], "any"], ["normal", [k, m], "float32"], ["normal", [m], "float32"]]
    return operands, {"group_size": size, "dim": dim}


def _quantised(f: Any, x: Any, weight: Any, bias: Any, **groups: int) -> Any:
    """The layer gets the weights of PyTorch's."""
    linear = torch.nn.Linear(*weight.shape)
    linear.weight.data, linear.bias.data = torch.tensor(weight.T.copy()), torch.tensor(bias)
    ir = popxl.Ir()
    with ir.main_graph:
        data, source, t = addons.host_load(x)
        factories, graph = f(weight.shape[1], **groups).create_graph(t)
        variables = factories.init()
        target = addons.host_store(*graph.bind(variables).call(t))
    with popxl.Session(ir, "ipu_hw") as session:
        session.write_variables_data(f.torch_mapping(variables, linear, popxl.dtype.as_dtype(x), **groups))
        return session.run({source: data})[target]


def _by_steps(got: list[Any], x: Any, weight: Any, bias: Any, group_size: int, dim: int) -> Any:
    """What came back, unless a weight was more than half of a 15th of its group's range away."""
    grouped = weight.movedim(dim, 1).unflatten(1, (-1, group_size))
    step = (grouped.amax(-1, keepdim=True) - grouped.amin(-1, keepdim=True)) / 15
    error = (0.51 * step + 4e-3 * grouped.abs()).flatten(1).movedim(1, dim)
    value = x @ weight + bias
    return got[0] if bool(((got[0] - value).abs() <= x.abs() @ error + 4e-3 * (1 + value.abs())).all()) else value


LAYERS = {
    "Conv2D": _layer(_filtered, dict, _convolved),
    "Embedding": _layer(
        _looked_up, lambda hidden_size: {"dtype": popxl.float32, "vocab_size": 5, "hidden_size": hidden_size},
        lambda index, weight, hidden_size: weight[index],
    ),
    "layer_norm_distributed.LayerNormDistributed": _layer(
        _wide, dict, lambda x, *w: F.layer_norm(x, x.shape[-1:], eps=1e-5), rounding=20
    ),
    "linear_gq.LinearGQ": _case(
        _quantised, _by_steps, _in_groups, random=True, around=("host",), dtypes=("float32", "float16")
    ),
    "linear_fp8.LinearFP8": _layer(_features, dict, _linear, rounding=4000),
}  # fmt: skip

ADDONS = {
    **NAMES,
    **ON_TWO,
    **{f"named_replica_grouping.{name}": case for name, case in GROUPS.items()},
    **{f"layers.{name}": case for name, case in LAYERS.items()},
    "function": _case(_function, lambda x: 4 * x),
    "create_grad_graph_info": _case(_gradient_info, lambda x: 2 * x, around=("main",)),
    "autodiff": _case(_differentiated, lambda x: 1 - torch.tanh(x) ** 2, around=("main", "stream")),
    **{
        name: _case(_with_variable, lambda x: x + 3, around=("main",))
        for name in ("add_variable_input", "add_replica_sharded_variable_input")
    },
    "route_tensor_into_graph": _case(_routed, lambda x: 3 * x, around=("main",)),
    "is_subgraph": _case(_contained, lambda x: 2 * x),
    "transforms.repeat_graph.repeat_graph": _case(_thrice, lambda x: x + 3, around=("main",)),
    "batch_serialise": _case(_in_steps, lambda x: (2 * x, 2 * x + 2), around=("main",)),
    "create_remote_buffer": _case(_one_buffer, around=("main", "call", "repeat")),
    "named_buffers": _case(lambda f, x: _there_and_back(f(addons.NamedTensors(a=x)), x)),
    "named_variable_buffers": _case(lambda f, x: _there_and_back(f(_factories(x)), x), around=("main", "call")),
    "remote.load_remote": _case(lambda f, x: _there_and_back(addons.named_buffers(addons.NamedTensors(a=x)), x)),
    "remote.store_remote": _case(lambda f, x: _there_and_back(addons.named_buffers(addons.NamedTensors(a=x)), x)),
    "load_remote_graph": _case(_by_graphs, lambda x: (x, 2 * x), around=("main",)),
    "store_remote_graph": _case(_by_graphs, lambda x: (x, 2 * x), around=("main",)),
    "seed_variable": _case(lambda f, x: f(5)[1], lambda x: _words(x, 5, 1, 1, 1), around=("main",)),
    "testing_utils.run_module": _case(_module_run, lambda x: 2 * x, around=("host",)),
    "host_load": _case(_own_session, lambda x: 2 * x, around=("host",)),
    "host_store": _case(_own_session, lambda x: 2 * x, around=("host",)),
}
