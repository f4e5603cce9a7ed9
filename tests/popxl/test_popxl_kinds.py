"""Arguments of a wrong kind: every function of ``popxl.ops`` refuses them with its name, the argument's, and what is
allowed."""

import copy
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ipuperf
from ipuperf import popxl
from ipuperf.ir.errors import ForeignTensorError
from ipuperf.numerics import EvaluationError
from ipuperf.popxl import ops

MODULES = (ops, ops.collectives, ops.var_updates)
FUNCTIONS = sorted(
    {f for m in MODULES for f in (getattr(m, n) for n in m.__all__) if inspect.isfunction(f)}, key=lambda f: f.__name__
)
#: ``call`` names its graph and that one's inputs.
_OWN = {"call", "call_with_info"}


class Thing:
    """What is no argument of any op."""


def _parameters() -> list[tuple[Callable[..., Any], str, str]]:
    """Each parameter of each function with its annotation, those that take anything aside."""
    return [
        (function, name, str(parameter.annotation))
        for function in FUNCTIONS
        if function.__name__ not in _OWN
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and not {"Any", "Inputs"} & {str(parameter.annotation)}
    ]


def _called(function: Callable[..., Any], name: str, value: Any) -> Any:
    """The function with one argument; what it takes with a star is given so."""
    starred = inspect.signature(function).parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
    return function(value) if starred else function(**{name: value})


@pytest.mark.parametrize(("function", "name", "annotation"), _parameters())
def test_what_is_no_argument_of_any_op(function: Callable[..., Any], name: str, annotation: str) -> None:
    with popxl.Ir().main_graph:
        with pytest.raises((TypeError, ValueError), match=f"{function.__name__}: {name} is <.*needed"):
            _called(function, name, Thing())
        if "Tensor" in annotation and "Sequence" not in annotation and "Mapping" not in annotation:
            for value in ("a", {}, [None]):
                with pytest.raises((TypeError, ValueError), match=rf"{function.__name__}: {name} is .*needed"):
                    _called(function, name, value)
        if annotation == "Tensor":
            for value in (2, 1.5, [], np.ones(2)):
                with pytest.raises(TypeError, match=rf"{function.__name__}: {name} is .*popxl.Tensor is needed"):
                    _called(function, name, value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.interpolate(x, 2), "interpolate: scale_factor is 2; a sequence of numbers is needed"),
        (lambda x: ops.histogram(x, 3, False), "histogram: levels is 3; a sequence of numbers is needed"),
        (lambda x: ops.matmul(x, x, "a"), "matmul: available_memory_proportion is 'a'; a number or None is needed"),
        (lambda x: ops.init((2,), popxl.float32, name=5), "init: name is 5; a string or None is needed"),
        (lambda x: ops.argmax(x, x), r"argmax: dim is Variable\[.*a whole number is needed"),
        (lambda x: ops.argmax(x, None), "argmax: dim is None; a whole number is needed"),
        (lambda x: ops.scaled_add(x, x, np.ones(2)), r"scaled_add: a is array.*a number or a popxl.Tensor is needed"),
        (lambda x: ops.cast(x, 5), "cast: data_type is 5; a popxl dtype is needed"),
        (lambda x: ops.concat([x, "a"]), "concat: ts is .*a sequence of popxl.Tensors is needed"),
        (lambda x: ops.max(x, keepdims="a"), "max: keepdims is 'a'; True or False is needed"),
    ],
)
def test_messages(call: Callable[[popxl.Tensor], Any], message: str) -> None:
    with popxl.Ir().main_graph:
        x = popxl.variable(np.ones((1, 1, 2, 2), np.float32), name="x")
        with pytest.raises(TypeError, match=message):
            call(x)


def test_a_type_that_the_ipu_does_not_have() -> None:
    with popxl.Ir().main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        with pytest.raises(ValueError, match="cast: data_type: unknown popxl dtype 'complex64'; allowed: bool"):
            ops.cast(x, "complex64")


@pytest.mark.parametrize("count", [2**31, 2**40])
def test_more_trips_than_numbers_are_computed_of(count: int) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(np.ones(2, np.float32))
        ops.repeat(ir.create_graph(lambda t: t + 1, x), count, x)
    with popxl.Session(ir, "ipu_hw") as session:
        assert ipuperf.simulate_session(session).totals()["compute"].iloc[0] > count
        with pytest.raises(EvaluationError, match=f"Loop.*: {count} trips; .*of at most 2147483647 trips"):
            session.run()


@pytest.mark.parametrize("n", [0, -7, 2**40])
def test_a_number_of_seeds_that_cannot_be(n: int) -> None:
    with popxl.Ir().main_graph:
        seed = popxl.variable(np.ones(2, np.uint32))
        with pytest.raises(ValueError, match=f"split_random_seed: n is {n}; allowed: 1 to 65536"):
            ops.split_random_seed(seed, n)


def test_levels_of_a_histogram_may_be_an_array() -> None:
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        counts = ops.histogram(popxl.variable(np.array([0.5, 1.5, 2.5, 3.5], np.float32)), np.array([1.0, 3.0]), False)
        stream = popxl.d2h_stream(counts.shape, counts.dtype)
        ops.host_store(stream, counts)
    with popxl.Session(ir, "ipu_hw") as session:
        np.testing.assert_array_equal(session.run()[stream], [1, 2, 1])


DATA = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: popxl.variable(DATA, name=5), "variable: name is 5; a string or None is needed"),
        (lambda: popxl.variable(DATA, downcast="a"), "variable: downcast is 'a'; True or False is needed"),
        (lambda: popxl.constant(DATA, dtype=5), "constant: dtype is 5; a popxl dtype or None is needed"),
        (lambda: popxl.h2d_stream((2,), popxl.float32, 5), "h2d_stream: name is 5; a string or None is needed"),
        (lambda: popxl.h2d_stream(None, popxl.float32), "shape of stream 'h2d' is None; a sequence of whole numbers"),
        (lambda: popxl.h2d_stream({}, popxl.float32), "shape of stream 'h2d' is {}; a sequence of whole numbers"),
        (lambda: popxl.remote_buffer(Thing(), popxl.float32), "shape of a remote buffer is <.*a sequence"),
        (lambda: popxl.replica_sharded_buffer((2,), popxl.float32, 5), "replica_grouping is 5; a ReplicaGrouping"),
        (lambda: popxl.Session(5, "ipu_model"), "Session: ir is 5; an Ir is needed"),
        (lambda: popxl.Session(popxl.Ir(), 5), "Session: device_desc is 5; a string or a DeviceInfo is needed"),
        (lambda: popxl.Tensor(DATA), "popxl.Tensor cannot be constructed of array.*use popxl.variable"),
        (lambda: popxl.HostToDeviceStream("x"), "popxl.HostToDeviceStream cannot be constructed; use popxl.h2d_stream"),
        (lambda: popxl.dtype("float32"), "popxl.dtype cannot be constructed of 'float32'"),
        (lambda: popxl.in_sequence(DATA), r"in_sequence\(array.*allowed are True, False and 'pass'"),
        (lambda: popxl.name_scope(5).__enter__(), "name_scope: name is 5; a string is needed"),
    ],
)
def test_what_makes_tensors_and_programs(call: Callable[[], Any], message: str) -> None:
    with popxl.Ir().main_graph, pytest.raises((TypeError, RuntimeError), match=message):
        call()


def test_what_is_known_of_graphs() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.variable(DATA, name="x")
        graph = ir.create_graph(lambda t: t + 1, x)
        site = ops.call_with_info(graph, x)
        refused: list[tuple[Callable[[], Any], str]] = [
            (lambda: popxl.transforms.autodiff(5), "autodiff: graph is 5; a Graph is needed"),
            (lambda: ir.create_graph(5), "Ir.create_graph: fn is 5; a function is needed"),
            (lambda: ir.dot_checkpoint(5), "Ir.dot_checkpoint: check is 5; a string is needed"),
            (lambda: ir.replica_grouping_from_assignments(5), "assignment is 5; a seq"),
            (lambda: site.graph_to_parent("a"), "graph_to_parent: graph_tensor is 'a'; a popxl.T"),
            (lambda: site.parent_to_graph(5), "parent_to_graph: parent_tensor is 5; a popxl.T"),
            (lambda: site.set_parent_input_modified([]), "parent_tensor is .*; a popxl.Tensor"),
        ]
        for call, message in refused:
            with pytest.raises(TypeError, match=message):
                call()
        for index in (1, -1):
            with pytest.raises(IndexError, match=f"operand {index} does not exist; there are 1"):
                site.parent_input(index)


def test_a_tensor_of_another_program_that_no_op_reads() -> None:
    other = popxl.Ir()
    with other.main_graph:
        x = popxl.variable(DATA, name="x")
    with popxl.Ir().main_graph:
        for function in (ops.slice, ops.slice_):
            with pytest.raises(ForeignTensorError, match=f"{function.__name__}: operand 'x' belongs to another Ir"):
                function(x)


def test_host_data_that_cannot_be_a_constant_names_the_op() -> None:
    with popxl.Ir().main_graph:
        x = popxl.variable(DATA)
        with pytest.raises(ValueError, match=r"add: constant 't': empty data of shape \(0,\)"):
            ops.add(x, [])
        with pytest.raises(ValueError, match="mul: constant 't': values from 1099511627776 to .* do not fit int32"):
            ops.mul(popxl.variable(np.ones(2, np.int32)), 2**40)


#: Ways to give the same tensors, or the same numbers, and whether they have an order.
ITERABLES = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "map": lambda items: map(copy.copy, items),
    "generator": lambda items: (item for item in items),
    "values": lambda items: dict(enumerate(items)).values(),
    "keys": lambda items: dict.fromkeys(items).keys(),
    "deque": deque,
    "class": type(
        "Own",
        (),
        {"__init__": lambda self, items: setattr(self, "items", items), "__iter__": lambda self: iter(self.items)},
    ),
}


@pytest.mark.parametrize("kind", ITERABLES.values(), ids=ITERABLES)
def test_iterables_of_any_kind(kind: Callable[[Any], Any]) -> None:
    """What upstream's functions pass to ``list`` or walk through."""
    ir = popxl.Ir()
    with ir.main_graph:
        x, y = (popxl.variable(np.arange(6, dtype=np.float32).reshape(2, 3) + n) for n in range(2))
        shapes = [
            ops.concat(kind([x, y])).shape,
            ops.concat(ts=kind([x, y]), axis=1).shape,
            ops.transpose(x, kind([1, 0])).shape,
            ops.reshape(x, kind([3, 2])).shape,
            x.reshape(kind([6])).shape,
            ops.sum(x, kind([0, 1])).shape,
            ops.slice(x, kind([0, 1]), kind([2, 3])).shape,
            ops.split(x, kind([1, 2]), 1)[1].shape,
            ops.squeeze(ops.reshape(x, (1, 6)), kind([0])).shape,
            popxl.h2d_stream(kind([2, 3]), popxl.float32).shape,
            popxl.remote_buffer(kind([2, 3]), popxl.float32).tensor_shape,
            ops.init(kind([4, 5]), popxl.float32).shape,
            ops.call(ir.create_graph(lambda a, b: a + b, x, y), kind([x, y]))[0].shape,
        ]  # fmt: skip
    assert shapes == [(4, 3), (2, 6), (3, 2), (3, 2), (6,), (), (2, 2), (2, 2), (6,), (2, 3), (2, 3), (4, 5), (2, 3)]
    with popxl.Session(ir, "ipu_model") as session:
        assert list(session.get_tensors_data(kind([x, y]))) == [x, y]


class Machine:
    """A class of a name that annotations have."""


def test_a_class_of_the_same_name_is_another_one() -> None:
    from ipuperf.lowering import lower

    with pytest.raises(TypeError, match=r"lower: machine is <.*Machine.*a Machine is needed"):
        lower(popxl.Ir()._ir, Machine())
