"""Golden rows of whole programs of addons: modules and their gradients, phased execution, pipelines, recomputation.

What they compute is compared with NumPy elsewhere; here each op, its place, order, phase and name
counts, and each refusal.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pipelineprograms as pipelines
import pytest
from addonsmodules import HOST, SHAPE, SPEC, Doubled, Keyword, ListOfInputs, Outer, Own, Scaled
from answers import answer, together
from programtext import figures, program_text
from rows import Golden
from test_addons_answers import connected

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl_addons import testing_utils
from ipuperf.popxl_addons.optimizers import AdamOptimizerStep
from ipuperf.popxl_addons.transforms.batch_serialisation import (
    batch_serialise,
    batch_serialise_fwd_and_grad,
    batch_serialise_non_overlapped,
    batch_serialise_overlapped,
)


def run(module: addons.Module, *args: Any) -> Any:
    factories, graph = module.create_graph(*args)
    return graph.bind(factories.init()).call_with_info(*[arg for arg in args if isinstance(arg, popxl.Tensor)])


def differentiated(module: addons.Module, **how: Any) -> Any:
    """The gradient graph of a module, called."""
    x = popxl.variable(HOST, name="x")
    factories, graph = module.create_graph(x)
    chosen = {key: value(graph) if callable(value) else value for key, value in how.items()}
    backward = graph.autodiff(**chosen)
    info = graph.bind(factories.init()).call_with_info(x)
    known = backward.grad_graph_info.inputs_dict(info)
    dy = [ops.init(t.shape, t.dtype, "dy") for t in backward.graph.inputs if t not in known]
    return connected(backward), backward.call(*dy, args=known)


def accumulated(recompute: bool = False, **how: Any) -> Any:
    x = popxl.variable(HOST, name="x")
    factories, graph = Outer(called=Scaled).create_graph(x)
    chosen = {key: value(graph) if callable(value) else value for key, value in how.items()}
    made, backward = addons.autodiff_with_accumulation(graph, graph.args.tensors, **chosen)
    if recompute:
        backward = addons.recompute_graph(backward)
    info = graph.bind(factories.init()).call_with_info(x)
    known = backward.grad_graph_info.inputs_dict(info)
    dy = [ops.init(t.shape, t.dtype, "dy") for t in backward.graph.inputs if t.name.startswith("Gradient")]
    return connected(backward), backward.bind(made.init()).call(*dy, args=known), made


def recomputed() -> Any:
    x = popxl.variable(HOST, name="x")
    factories, graph = Outer(called=Scaled).create_graph(x)
    backward = addons.recompute_graph(graph.autodiff())
    info = graph.bind(factories.init()).call_with_info(x)
    known = backward.grad_graph_info.inputs_dict(info)
    dy = [ops.init(t.shape, t.dtype, "dy") for t in backward.graph.inputs if t not in known]
    return connected(backward), backward.call(*dy, args=known)


def described(wrong: str = "") -> Any:
    """A gradient graph that the program has built itself."""
    ir = popxl.gir()
    forward = ir.create_graph(lambda x, w: x * w, SPEC, SPEC)
    backward = ir.create_graph(lambda dy, w: dy * w, SPEC, SPEC)
    (x, w), (y,), (dy, again) = forward.inputs, forward.outputs, backward.inputs
    other = popxl.Ir() if wrong else ir
    info = addons.create_grad_graph_info(other, forward, backward, {dy: y, again: w}, {backward.outputs[0]: x}, [w])
    return connected(addons.GraphWithNamedArgs.from_grad_graph(info))


def added(wrong: str) -> Any:
    factories, graph = Doubled().create_graph(SPEC, wrong)
    shapes = [(name, f.shape, f.meta_shape, f.by_ref, f.dtype) for name, f in factories.to_dict().items()]
    return shapes, graph.args, graph.graph.inputs


def adam(**options: Any) -> Any:
    w = popxl.variable(HOST.astype(np.float16), name="w")
    grad = popxl.variable(HOST.astype(np.float16), name="grad")
    tensors = {name: popxl.variable(np.float32(0.5), name=name) for name in options.pop("tensors", ())}
    sharded = options.pop("sharded", 0)
    if sharded:
        group = popxl.gir().replica_grouping(group_size=sharded)
        w, grad = (ops.collectives.replica_sharded_slice(t, group) for t in (w, grad))
        options["replica_grouping"] = group
    factories, graph = AdamOptimizerStep(cache=True).create_graph(w, grad, **{"lr": 0.1, **options, **tensors})
    state = factories.init().to_dict()
    if sharded:
        whole = {name for name, factory in factories.to_dict().items() if not factory.meta_shape}
        cut = ops.collectives.replica_sharded_slice
        state = {name: t if name in whole else cut(t, group) for name, t in state.items()}
    graph.bind(addons.NamedTensors.from_dict(state)).call(w, grad, *tensors.values())
    return factories.to_dict().keys(), [f.meta_shape for f in factories.to_dict().values()]


def serialised(mode: Any, steps: int, rows: int = 1, kinds: str = "row", seed: bool = False, shard: int = 0) -> Any:
    """One phase; inputs come from a stream or a buffer, and outputs go there."""
    ir = popxl.gir()
    group = ir.replica_grouping(group_size=shard) if shard else None
    seeds = [popxl.TensorSpec((2,), popxl.uint32)] if seed else []
    factories, graph = Scaled(seed).create_graph(SPEC, *seeds)
    x, y = graph.graph.inputs[0], graph.graph.outputs[0]
    buffer = addons.batch_serial_buffer(SPEC, steps, rows + 1, group)
    handle = {"row": 0, "same": None, "function": lambda row: row + 1}.get(kinds, 1)
    loads = {x: popxl.h2d_stream(SHAPE, popxl.float32, "in") if kinds == "stream" else (buffer, handle, group)}
    streams = {y: popxl.d2h_stream(SHAPE, popxl.float32, "out")} if kinds in ("stream", "both") else {}
    buffers = {y: addons.RemoteHandle(buffer, 1, group)} if kinds != "stream" else {}
    made = batch_serialise(graph, steps, loads, streams, buffers, graph.graph.inputs[1] if seed else None, rows, mode)
    variables = factories.init()
    given = [ops.init((2,), popxl.uint32, "seed")] if seed else []
    made.graph.bind(variables).call(0, *given)
    return buffer, made.stored_buffers, made.remap_tensors(graph.args)


def refused_serialisation(wrong: str) -> Any:
    ir = popxl.gir()
    _, graph = Scaled(True).create_graph(SPEC, popxl.TensorSpec((2,), popxl.uint32))
    x, y, other = graph.graph.inputs[0], graph.graph.outputs[0], popxl.variable(1.0)
    stream, out = popxl.h2d_stream(SHAPE, popxl.float32), popxl.d2h_stream(SHAPE, popxl.float32)
    buffer, small = addons.batch_serial_buffer(SPEC, 3), popxl.remote_buffer((2,), popxl.float32)
    give = partial(batch_serialise, graph)
    if wrong == "without io tiles":
        ir.num_io_tiles = 0
    return {
        "handle": lambda: give(3, {x: 3}, {}, {}),
        "tuple": lambda: give(3, {x: ()}, {}, {}),
        "long tuple": lambda: give(3, {x: (buffer, 0, None, 1)}, {}, {}),
        "buffer": lambda: give(3, {x: addons.RemoteHandle(3)}, {}, {}),
        "row": lambda: give(3, {x: (buffer, -1)}, {}, {}),
        "stored handle": lambda: give(3, {}, {}, {y: 3}),
        "loaded tensor": lambda: give(3, {other: stream}, {}, {}),
        "streamed tensor": lambda: give(3, {}, {other: out}, {}),
        "stored tensor": lambda: give(3, {}, {}, {other: buffer}),
        "output loaded": lambda: give(3, {y: stream}, {}, {}),
        "shape": lambda: give(3, {}, {}, {y: (small, 0)}),
        "stream's shape": lambda: give(3, {x: popxl.h2d_stream((2,), popxl.float32)}, {}, {}),
        "stream's type": lambda: give(3, {}, {y: popxl.d2h_stream(SHAPE, popxl.float16)}, {}),
        "seed": lambda: give(3, {}, {}, {}, y),
        "steps": lambda: give(0, {}, {}, {}),
        "rows": lambda: give(1, {}, {}, {}, rows=0),
        "mode": lambda: give(3, {}, {}, {}, io_mode="other"),
        "without io tiles": lambda: give(3, {}, {}, {}, io_mode="io"),
        "overlapped": lambda: batch_serialise_overlapped(graph, 1, {}, {}, {}),
        "two overlapped": lambda: batch_serialise_overlapped(graph, 2, {x: (buffer, 0)}, {}, {}).graph.name,
        "one overlapped step": lambda: give(1, {x: (buffer, 0)}, {}, {}, io_mode="io_overlapped").graph.name,
        "one step": lambda: batch_serialise_non_overlapped(graph, 1, {x: (buffer, 0)}, {}, {y: (buffer, 0)}).graph.name,
    }[wrong]()


def both_phases(mode: Any, kinds: str = "", steps: int = 3) -> Any:
    """A forward and a backward phase; what is between goes through buffers."""
    ir = popxl.gir()
    factories, graph = Outer(called=Scaled).create_graph(SPEC)
    required = [graph.graph.inputs[0]]
    more, backward = addons.autodiff_with_accumulation(graph, graph.args.tensors, required)
    x, y, (dx, *_) = graph.graph.inputs[0], graph.graph.outputs[0], backward.graph.outputs
    dy = next(t for t in backward.graph.inputs if t.name.startswith("Gradient"))
    buffer = addons.batch_serial_buffer(SPEC, steps, 2)
    group = ir.replica_grouping(group_size=2)
    loads = {x: (buffer, 0), dy: popxl.h2d_stream(SHAPE, popxl.float32, "dy")}
    stores: dict[Any, Any] = {y: (buffer, 1), dx: (buffer, None)}
    if kinds == "stream":
        loads[x] = popxl.h2d_stream(SHAPE, popxl.float32, "x")
    if kinds == "group":
        stores[y] = group
    if kinds == "no gradient":
        del loads[dy]
    if kinds == "foreign":
        stores[popxl.variable(1.0, name="foreign")] = (buffer, 0)
    names = graph.args if kinds != "unnamed" else addons.NamedTensors()
    forward, back = batch_serialise_fwd_and_grad(graph, backward, names, steps, loads, {}, stores, io_mode=mode)
    variables, state = factories.init(), more.init()
    forward.graph.bind(variables).call(0)
    back.graph.bind(variables).bind(state).call(0)
    return buffer, forward.stored_buffers, connected(back.graph)


def pipelined(stages: int, steps: int, recompute: bool = False) -> Any:
    net = pipelines.network(stages, recompute=recompute)
    return figures(pipelines.pipelined(net, steps)._ir)


def refused_pipeline(wrong: str) -> Any:
    x, y = popxl.variable(HOST, name="x"), popxl.variable(HOST, name="y")
    with popxl.ipu(1):
        far = popxl.variable(HOST, name="far")
    if wrong == "steps":
        with addons.pipelined_execution(0):
            pass
    if wrong in ("nothing", "bool"):
        with addons.pipelined_execution(True if wrong == "bool" else 4):
            pass
    factories, graph = Scaled().create_graph(x)
    info = graph.bind(factories.init()).call_with_info(x)
    with addons.pipelined_execution(3 if wrong == "few" else 8) as p:
        if wrong == "outside":
            x + 1
        if wrong == "number":
            with p.stage(-1):
                pass
        if wrong == "no stash":
            p.stash_and_restore_tensor(x)
        with p.stage(0):
            a = x + 1
            if wrong == "far":
                ops.print_tensor(far.copy_to_ipu(0, 1))
            if wrong == "same":
                p.stash_and_restore_tensor(a)
            if wrong == "not made":
                p.stash_and_restore_tensor(y)
            b = a.copy_to_ipu(1)
            if wrong == "at once":
                with popxl.ipu(1):
                    b + 1
        with p.stage({"gap": 3, "late": 2}.get(wrong, 1)), popxl.ipu(1):
            if wrong == "late":
                a.copy_to_ipu(1)
                with p.stage(1):
                    y + 1
            if wrong == "next":
                with popxl.ipu(0):
                    a + 1
            c = b + 1
            if wrong == "activations":
                p.stash_and_restore_activations(info, graph.autodiff().grad_graph_info)
        if wrong in ("later", "later copy"):
            with p.stage(2), popxl.ipu(1):
                c + 1 if wrong == "later" else b + 1
        if wrong == "earlier":
            with p.stage(0), popxl.ipu(1):
                c + 1
        if wrong == "onward":
            with p.stage(1):
                d = c.copy_to_ipu(0).copy_to_ipu(1)
            with p.stage(2), popxl.ipu(1):
                e = d + p.stash_and_restore_tensor(c)
            with p.stage(3), popxl.ipu(1):
                ops.print_tensor(p.stash_and_restore_tensor(b, 1) + p.stash_and_restore_tensor(e))
        return c


def module_of_lists(wrong: str) -> Any:
    members = addons.Module.from_list([Scaled(), Scaled()])
    if wrong == "early":

        class Early(addons.Module):
            def __init__(self) -> None:
                self.inner = Scaled()

        return Early()
    if wrong == "no list":
        return list(Scaled())
    if wrong == "no name":
        return members["5"]
    if wrong == "tuple":
        outer = Outer()
        outer.pair = (Scaled(), 3, Scaled())
        return list(outer._children)
    return [type(member).__name__ for member in members], members[0] is members.get("0"), members._children.keys()


def module_options(wrong: str) -> Any:
    if wrong == "outside":
        return Own().aux["x"]
    if wrong == "gradient outside":
        return Own().var_grad["w"]
    if wrong == "known":
        graph = Own().create_graph(SPEC)[1]
        graph.grad_graph_info = graph.autodiff().grad_graph_info
        return "x" in graph._aux, "y" in graph._aux, connected(graph)
    if wrong == "undefined":
        return Scaled().build_grad()
    if wrong == "cached":
        return Own(cache=True)
    return Scaled(grad_inlining_error=wrong).grad_inlining_error


def inlined_after_its_graph() -> Any:
    """A module forgets the variables of a graph when that is made."""
    module = Scaled()
    module.create_graph(SPEC)
    return popxl.gir().create_graph(lambda x: module(x), SPEC).inputs


def cached_graphs() -> Any:
    module, x = Scaled(cache=True), popxl.variable(HOST)
    made = [module.create_graph(spec) for spec in (SPEC, x, popxl.TensorSpec((1, 4), popxl.float32))]
    factories = [facts.to_dict().keys() for facts, _ in made]
    return [graph.graph for _, graph in made], factories, [graph.args for _, graph in made]


def whole_run(weights: Any = None) -> Any:
    return testing_utils.run_module(Scaled(), testing_utils.TensorInput(HOST, popxl.float32), weights=weights)


CASES: dict[str, Callable[[], Any]] = {
    "module": lambda: run(Outer(), popxl.variable(HOST)).outputs,
    "module by name": lambda: run(Outer(name="named"), popxl.variable(HOST)).outputs,
    "module in a module": lambda: run(Outer(called=Outer), popxl.variable(HOST)).outputs,
    "module of lists": lambda: module_of_lists(""),
    **{f"module, {wrong}": partial(module_of_lists, wrong) for wrong in ("early", "no list", "no name", "tuple")},
    **{
        f"module option, {wrong}": partial(module_options, wrong)
        for wrong in ("outside", "gradient outside", "known", "undefined", "cached", "warning", "other", "none")
    },
    **{f"inlined, {how}": lambda how=how: run(Outer(inline=partial(Own, grad_inlining_error=how)), popxl.variable(HOST))
       .outputs for how in ("error", "warning", "none")},
    "inlined after its graph": inlined_after_its_graph,
    "cached graphs": cached_graphs,
    "list of inputs": lambda: run(ListOfInputs(), popxl.variable(HOST)).outputs,
    **{f"variables {wrong!r}": lambda wrong=wrong: added(wrong)
       for wrong in ("", "a", "f", "s", "inner", "inner.w", "inner.v", "again")},
    **{f"gradient {how!r}": lambda how=how: differentiated(Own(how)) for how in (
        "", "none", "two", "shape of x", "no variable", "no name", "no tensor", "shape")},
    "gradient with a keyword": lambda: differentiated(Keyword()),
    "gradient of inputs": lambda: differentiated(Own(), grads_required=lambda g: [g.graph.inputs[0]]),
    "gradient of variables": lambda: differentiated(Own("none"), grads_required=lambda g: g.args.tensors),
    "gradient of outputs": lambda: differentiated(Own(), grads_required=lambda g: g.graph.outputs),
    "gradient from inputs": lambda: differentiated(Own(), grads_provided=lambda g: g.graph.inputs),
    "gradient of one twice": lambda: differentiated(Own(), grads_required=lambda g: [g.graph.inputs[0]] * 2),
    **{f"method {method}": lambda method=method: differentiated(Own(), method=method) for method in (
        "auto", "build_grad", "autodiff", "other")},
    "no build_grad": lambda: differentiated(Scaled(), method="build_grad"),
    **{f"call_module {how}": lambda how=how: differentiated(Outer(autodiff=how)) for how in (
        "auto", "build_grad", "autodiff", "none")},
    "call_module of some": lambda: differentiated(Outer(grads_required=lambda g: [g.graph.inputs[0], *g.args.tensors])),
    "described": described,
    "described elsewhere": lambda: described("other"),
    "recomputed": recomputed,
    **{f"accumulated {r} {more}": lambda r=r, more=more: accumulated(r, **{
        "": {}, "x": {"grads_required": lambda g: [g.graph.inputs[0]]},
        "w": {"grads_required": lambda g: list(g.args.tensors)},
        "groups": {"replica_groupings": lambda g: addons.NamedReplicaGrouping.build_groups(
            ["one.w"], popxl.gir().replica_grouping(group_size=2))}}[more])
       for r, more in product((False, True), ("", "x", "w", "groups"))},
    **{f"adam {options}": lambda options=options: adam(**options) for options in (
        {}, {"bias_correction": False}, {"loss_scaling": 64}, {"first_order_dtype": popxl.float32, "beta1": 0.8},
        {"sharded": 2}, {"tensors": ("lr", "beta1", "weight_decay")}, {"tensors": ("global_norm",)},
        {"tensors": ("global_norm",), "global_norm_max": 2.0}, {"tensors": ("global_norm", "global_norm_max")},
        {"tensors": ("global_norm", "loss_scaling"), "global_norm_max": 2.0}, {"sharded": 4, "eps": 1e-3})},
    **{f"phase {mode} {steps} {kinds}": partial(serialised, mode, steps, kinds=kinds) for mode, steps, kinds in (
        *product(("compute", "io", "io_overlapped"), (3,), ("row", "same", "function", "stream", "both")),
        ("io_overlapped", 2, "row"), ("io_overlapped", 1, "row"), ("compute", 1, "row"))},
    **{f"phase {mode} of rows with seeds": partial(serialised, mode, 3, 2, seed=True)
       for mode in ("io", "io_overlapped")},
    **{f"phase {mode} of shards": partial(serialised, mode, 3, kinds=kinds, shard=2)
       for mode, kinds in (("io", "row"), ("io_overlapped", "both"), ("compute", "both"))},
    **{f"phase, {wrong}": partial(refused_serialisation, wrong) for wrong in (
        "handle", "tuple", "long tuple", "buffer", "row", "stored handle", "loaded tensor", "streamed tensor",
        "stored tensor", "output loaded", "shape", "stream's shape", "stream's type", "seed", "steps", "rows", "mode",
        "without io tiles", "overlapped", "two overlapped", "one overlapped step", "one step")},
    **{f"both phases {mode} {kinds}": partial(both_phases, mode, kinds) for mode, kinds in (
        *product(("compute", "io", "io_overlapped"), ("", "stream", "group")),
        ("io", "no gradient"), ("io", "foreign"), ("compute", "unnamed"))},
    **{f"pipeline, {wrong}": partial(refused_pipeline, wrong) for wrong in (
        "", "steps", "nothing", "bool", "few", "outside", "number", "no stash", "far", "same", "not made", "at once",
        "gap", "late", "next", "activations", "later", "later copy", "earlier", "onward")},
}  # fmt: skip
ALONE: dict[str, Callable[[], Any]] = {
    **{f"{args}": partial(pipelined, *args) for args in ((1, 2), (2, 6), (2, 7, True), (3, 10), (3, 10, True))},
    "run": whole_run,
    "run with weights": lambda: whole_run(lambda named: {named.w: 3 * HOST}),
}
"""Those that make their own program."""


@pytest.mark.filterwarnings("ignore")
@together(CASES, lambda case: case.split()[0].strip(","))
def test_every_program(cases: list[str], golden: Golden, caplog: pytest.LogCaptureFixture) -> None:
    lines = []
    for case in cases:
        np.random.seed(7)  # noqa: NPY002  # of drawn weights
        ir = popxl.Ir(4)
        ir.num_io_tiles = 32
        caplog.clear()
        with ir.main_graph, popxl.in_sequence(), caplog.at_level(logging.WARNING):
            said = answer(CASES[case])
        lines += [
            case,
            said,
            *(f"{r.levelname} {r.name}: {r.getMessage()}" for r in caplog.records),
            program_text(ir._ir),
        ]
    golden(lines)


def test_programs_of_their_own(golden: Golden) -> None:
    lines = []
    for case, make in ALONE.items():
        np.random.seed(7)  # noqa: NPY002  # of drawn weights
        lines += [case, answer(make)]
    golden(lines)
