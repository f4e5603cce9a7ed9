"""Arguments of ops that the table of :mod:`test_tf_graph_ops` leaves out: lists, updates of variables by their raw ops,
random numbers, and orders of axes that TensorFlow's CPU does not have.
"""

# ruff: noqa: E731 (the table is made of small functions that are bound where they are written)

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import GraphPlace, Program, check
from tensorflow.python.framework import op_def_registry

RNG = np.random.default_rng(5)
raw, F32 = tf.raw_ops, tf.float32
Case = tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# -- lists -------------------------------------------------------------------------------------------------------------


def sliced(x: Any) -> Any:
    return raw.TensorListFromTensor(tensor=x, element_shape=[3])


def pushed(x: Any) -> Any:
    made = raw.EmptyTensorList(element_shape=[3], max_num_elements=-1, element_dtype=F32)
    for row in tf.unstack(x):
        made = raw.TensorListPushBack(input_handle=made, tensor=row)
    return made


def one(x: Any, i: Any, count: int = 3) -> Any:
    """A list of which one item is written, at a place that the program computes."""
    return put(raw.TensorListReserve(element_shape=[3], num_elements=count, element_dtype=F32), i, x)


def put(made: Any, i: Any, x: Any) -> Any:
    return raw.TensorListSetItem(input_handle=made, index=i, item=x)


def whole(made: Any, count: int = -1) -> Any:
    return raw.TensorListStack(input_handle=made, element_shape=[3], element_dtype=F32, num_elements=count)


def item(made: Any, i: Any) -> Any:
    return raw.TensorListGetItem(input_handle=made, index=i, element_shape=[3], element_dtype=F32)


def picked(made: Any, places: Any) -> Any:
    return raw.TensorListGather(input_handle=made, indices=places, element_shape=[3], element_dtype=F32)


def scattered(x: Any, places: list[int], count: int) -> Any:
    return raw.TensorListScatterV2(tensor=x, indices=places, element_shape=[3], num_elements=count)


def popped(made: Any) -> Any:
    rest, last = raw.TensorListPopBack(input_handle=made, element_shape=[3], element_dtype=F32)
    return whole(rest), last


def pieces(x: Any, lengths: list[int]) -> Any:
    made = raw.TensorListSplit(tensor=x, element_shape=[-1, 3], lengths=lengths)
    behind = {"element_dtype": F32, "element_shape": [-1, 3], "leading_dims": tf.zeros([0], tf.int64)}
    return raw.TensorListConcatV2(input_handle=made, **behind)


def summed(*lists: Any) -> Any:
    return whole(raw.AddN(inputs=list(lists)))


def growing(made: Any, x: Any) -> Any:
    """A list that a loop appends two items to."""
    body = lambda i, m: (i + 1, raw.TensorListPushBack(input_handle=m, tensor=x[i] * 2))
    return tf.while_loop(lambda i, _: i < 2, body, [0, made])[1]


def lists() -> Iterator[Case]:
    rows, place = f32(3, 3), np.array(1, np.int32)
    for name, made in (("sliced", sliced), ("pushed", pushed)):
        length = lambda x, m=made: raw.TensorListLength(input_handle=m(x)) + tf.cast(x[0, 0] * 0, tf.int32)
        yield f"length {name}", length, (rows,)
        shape = lambda x, m=made: raw.TensorListElementShape(input_handle=m(x), shape_type=tf.int32) + 0
        yield f"element shape {name}", shape, (rows,)
        yield f"items {name}", lambda x, i, m=made: (item(m(x), 2), item(m(x), i)), (rows, place)
        yield f"gather {name}", lambda x, i, m=made: (picked(m(x), [2, 0]), picked(m(x), i)), (rows, place[None])
        yield f"set {name}", lambda x, i, m=made: (whole(put(m(x), 2, x[0])), whole(put(m(x), i, x[0]))), (rows, place)
        yield f"pop {name}", lambda x, m=made: popped(m(x)), (rows,)
        shorter = lambda x, m=made: whole(raw.TensorListResize(input_handle=m(x), size=2))
        yield f"shorter {name}", shorter, (rows,)
        longer = lambda x, m=made: whole(put(raw.TensorListResize(input_handle=m(x), size=4), 3, x[1]))
        yield f"longer {name}", longer, (rows,)
        more = lambda x, m=made: whole(raw.TensorListPushBack(input_handle=m(x), tensor=x[0]))
        yield f"push {name}", more, (rows,)
        zeros = lambda x, m=made: summed(raw.ZerosLike(x=m(x)), m(x))
        yield f"zeros {name}", zeros, (rows,)
        for other_name, other in (("sliced", sliced), ("pushed", pushed)):
            both = lambda x, y, m=made, o=other: summed(m(x), o(y))
            yield f"sum of {name} and {other_name}", both, (rows, f32(3, 3))
            chosen = lambda c, x, y, m=made, o=other: whole(tf.cond(c, lambda: m(x), lambda: o(y)))
            yield f"{name} or {other_name}", chosen, (np.array(True), rows, f32(3, 3))
        for order in (1, -1):
            one_more = lambda x, y, i, m=made, o=order: summed(*[m(x), one(y, i)][::o])
            yield f"sum of {name} and one {order}", one_more, (rows, f32(3), place)
    yield "one", lambda x, i: (whole(one(x, i)), item(one(x, i), i)), (f32(3), place)
    ones = lambda x, y, i, j: summed(one(x, i), one(y, j))
    yield "sum of ones", ones, (f32(3), f32(3), place, np.array(2, np.int32))
    yield "sum of one twice", ones, (f32(3), f32(3), place, place)
    two = lambda x, y, i: whole(put(one(x, 0), i, y))
    yield "one computed place after a known one", two, (f32(3), f32(3), place)
    yield "length of one", lambda x, i: raw.TensorListLength(input_handle=one(x, i)) + i, (f32(3), place)
    yield "one slice", lambda x: whole(sliced(x)), (f32(1, 3),)
    for places, count in (([2, 0, 1], 3), ([2, 0, 1], -1)):
        yield f"scatter {places} of {count}", lambda x, p=places, n=count: whole(scattered(x, p, n)), (rows,)
    yield "scatter into more", lambda x: whole(scattered(x[:2], [2, 0], 5)), (rows,)
    nothing = lambda x: raw.TensorListScatter(tensor=x, indices=tf.zeros([0], tf.int32), element_shape=[3])
    yield "scatter nothing", lambda x: whole(nothing(x)) + x, (f32(0, 3),)
    yield "zeros of one", lambda x, i: summed(raw.ZerosLike(x=one(x, i)), one(x, i)), (f32(3), place)
    for name, made in (("sliced", sliced), ("pushed", pushed)):
        yield f"more and more {name}", lambda x, m=made: whole(growing(m(x), x)), (rows,)
    yield "scatter one of two", lambda x: whole(put(scattered(x, [1], 2), 0, x[0] * 2)), (f32(1, 3),)
    for lengths in ([1, 2], [2, 1], [3]):
        yield f"split {lengths}", lambda x, n=lengths: pieces(x, n), (rows,)
    empty = lambda x: whole(raw.EmptyTensorList(element_shape=[3], max_num_elements=0, element_dtype=F32)) + x
    yield "empty", empty, (f32(1, 3),)
    for at in (-1, 0, 1, 2, 3):
        yield f"case {at}", lambda x, a=at: switched(x, tf.constant(a)), (rows,)
        yield f"computed case {at}", switched, (rows, np.array(at, np.int32))


def switched(x: Any, i: Any) -> Any:
    return tf.switch_case(i, [lambda: x * 2, lambda: x + 1, lambda: -x])


# -- shapes, selection -------------------------------------------------------------------------------------------------


def others() -> Iterator[Case]:
    x = f32(2, 3, 4)
    yield "clip", lambda x, a, b: raw.ClipByValue(t=x, clip_value_min=a, clip_value_max=b), (x, f32() - 1, f32() + 1)
    yield "argmax of bytes", lambda x: tf.argmax(tf.cast(x, tf.uint8), 1), (RNG.integers(0, 9, (3, 5), np.int32),)
    stitch = lambda x, y: tf.dynamic_stitch([tf.constant([0, 3]), tf.constant([1, 3])], [x, y])
    yield "dynamic_stitch with a gap", stitch, (f32(2, 3), f32(2, 3))
    yield "ones of a shape", lambda x: raw.OnesLike(x=x) + x, (x,)
    yield "size and rank", lambda x: tf.cast(raw.Size(input=x) + raw.Rank(input=x), F32) + x, (x,)
    for rounds in (0, 1):
        loop = lambda x, n=rounds: tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 2 + 1), [0, x])[1]
        yield f"a loop of {rounds}", loop, (x,)
    for size in ([7, 6], [2, 7, 6, 4]):
        given = {"strides": [1, 1, 1, 1], "padding": "SAME", "input_sizes": size}
        transposed = lambda w, dy, k=given: raw.Conv2DBackpropInput(filter=w, out_backprop=dy, **k)
        yield f"Conv2DBackpropInput {size}", transposed, (f32(3, 2, 4, 5), f32(2, 7, 6, 5))
    for numbers in (f32(5), f32(1, 5), f32(1)):
        scaled = lambda x, w, n=numbers: tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME") * n + n)
        yield f"a convolution scaled by {numbers.shape}", scaled, (f32(2, 7, 6, 4), f32(3, 2, 4, 5))
    different = lambda x: tf.gather(x, tf.unique(tf.constant([1, 0, 1, 1]))[0])
    yield "unique known numbers", different, (x,)
    rows = lambda x: tf.gather(x, raw.UniqueV2(x=tf.constant([1, 0, 1]), axis=[0])[0])
    yield "unique known rows", rows, (x,)
    yield "places of known numbers", lambda x: tf.gather(x, tf.unique(tf.constant([9, 7, 8, 9]))[1] % 2), (x,)
    yield "dynamic_stitch of nothing", lambda x: tf.dynamic_stitch([tf.zeros([0], tf.int32)], [x]), (f32(0, 3),)
    for name, (one_, other) in GRADIENTS.items():
        given = RNG.uniform(0.1, 0.9, (2, 3, 4)).astype(np.float32) * (-1 if name in ("EluGrad", "SeluGrad") else 1)
        yield name, lambda a, b, n=name, k=(one_, other): getattr(raw, n)(**dict(zip(k, (a, b)))), (x, given)
    yield "known when it is imported", lambda x: raw.EnsureShape(input=x, shape=[2, 3, 4]) * 2, (x,)
    counts = lambda n: raw.DenseBincount(input=n, size=tf.shape(n)[0] * 2, weights=tf.zeros([0]))
    yield "counts of a computed size", counts, (np.array([3, 1, 3], np.int32),)
    loop_of = lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), [0, x])[1]
    for chosen in (True, False):
        loop = lambda c, x: tf.cond(c, lambda: loop_of(x), lambda: x + 1)
        yield f"a loop in a branch {chosen}", loop, (np.array(chosen), x)
        nested = lambda c, x: tf.cond(c, lambda: tf.cond(x[0, 0, 0] > 0, lambda: x * 2, lambda: x * 3), lambda: x + 1)
        yield f"a branch in a branch {chosen}", nested, (np.array(chosen), x)
        differentiated = lambda c, x: gradient(lambda t: tf.cond(c, lambda: tf.sin(t) ** 2, lambda: t * 3), x)
        yield f"the gradient of a branch {chosen}", differentiated, (np.array(chosen), x)
    for numbers in ([4, 1, 4], [2]):
        v, new = tf.Variable(f32(5, 3)), f32(len(numbers), 3)
        yield f"rows of numbers {numbers}", lambda i, u, v=v: summed_rows(v, i, u), (np.array(numbers, np.int32), new)
    v = tf.Variable(f32(5, 3, 2))
    yield "VarIsInitializedOp", lambda x: x * tf.cast(raw.VarIsInitializedOp(resource=v.handle), F32), (x,)
    place = np.array([[1, 2], [4, 0]], np.int32)
    yield "ResourceGatherNd", lambda i: raw.ResourceGatherNd(resource=v.handle, indices=i, dtype=F32) * 2, (place,)


GRADIENTS = {
    "SoftplusGrad": ("gradients", "features"), "SoftsignGrad": ("gradients", "features"), "TanhGrad": ("dy", "y"),
    "SigmoidGrad": ("dy", "y"), "InvGrad": ("dy", "y"), "ReciprocalGrad": ("dy", "y"), "SqrtGrad": ("dy", "y"),
    "RsqrtGrad": ("dy", "y"), "EluGrad": ("gradients", "outputs"), "SeluGrad": ("gradients", "outputs"),
    "Relu6Grad": ("gradients", "features"), "ReluGrad": ("gradients", "features"),
    "LeakyReluGrad": ("gradients", "features"),
}  # fmt: skip
"""Gradients of activations, and what they take."""


def gradient(function: Callable[..., Any], x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(function(x))
    return tape.gradient(loss, x)


def summed_rows(v: Any, numbers: Any, updates: Any) -> None:
    """Sums of the rows of equal numbers, taken off a variable, as optimizers do it."""
    different, places = tf.unique(numbers)
    sums = tf.math.unsorted_segment_sum(updates, places, tf.shape(different)[0])
    raw.ResourceScatterSub(resource=v.handle, indices=tf.identity(different), updates=sums)


# -- updates -----------------------------------------------------------------------------------------------------------


def updates() -> Iterator[Case]:
    """Every update of an optimizer with hyper-parameters that are neither 0, 1 nor 2, known and computed."""
    for name in sorted(op for op in dir(raw) if op.startswith("Resource")):
        if not name.startswith(("ResourceApply", "ResourceSparseApply")) or name in WITHOUT:
            continue
        nesterov = "use_nesterov" in {a.name for a in op_def_registry.get(name).attr}
        for option in (False, True) if nesterov else (None,):
            given = {} if option is None else {"use_nesterov": option}
            for computed in (False, True):
                label = f"{name} {'' if option is None else option}{' computed' if computed else ''}"
                function, numbers = update_of(name, given, computed)
                yield label, function, numbers


WITHOUT = {
    "ResourceApplyAdagradDA", "ResourceSparseApplyAdagradDA", "ResourceApplyProximalAdagrad",
    "ResourceSparseApplyProximalAdagrad", "ResourceSparseApplyProximalGradientDescent",
}  # fmt: skip
"""Those that the import does not have."""
NUMBERS = {
    "lr_power": -0.4, "beta1_power": 0.6, "beta2_power": 0.7, "beta1": 0.83, "beta2": 0.91, "momentum": 0.77,
    "rho": 0.85, "epsilon": 0.03, "l1": 0.04, "l2": 0.13, "l2_shrinkage": 0.21, "logbase": 1.3, "sign_decay": 0.6,
    "alpha": 0.11, "beta": 0.8, "lr": 0.17,
}  # fmt: skip


def update_of(name: str, options: dict[str, bool], computed: bool) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
    arguments = op_def_registry.get(name).input_arg
    rows = "Sparse" in name
    handles = {a.name: tf.Variable(RNG.uniform(0.3, 1.5, (4, 3)).astype(np.float32)) for a in arguments if a.type == 20}
    gradient = "delta" if "delta" in {a.name for a in arguments} else "grad"
    numbers = {a.name: NUMBERS[a.name] for a in arguments if a.name in NUMBERS}
    function = getattr(raw, name)

    def call(g: Any, *known: Any) -> None:
        given: dict[str, Any] = {gradient: g, **{k: v.handle for k, v in handles.items()}, **options}
        given |= dict(zip(numbers, known)) if computed else numbers
        if rows:
            given["indices"] = [3, 1]
        function(**given)

    operands = tuple(np.array(v, np.float32) for v in numbers.values()) if computed else ()
    return call, (f32(2 if rows else 4, 3), *operands)


def scatters() -> Iterator[Case]:
    rows, cells = np.array([[3], [1]], np.int32), np.array([[3, 1], [1, 2], [0, 0]], np.int32)
    for how in ("Update", "Add", "Sub", "Min", "Max"):
        for indices, new in ((rows, f32(2, 3)), (cells, f32(3))):
            v = tf.Variable(f32(4, 3))
            function = getattr(raw, f"ResourceScatterNd{how}")
            call = lambda i, u, v=v, f=function: (f(ref=v.handle, indices=i, updates=u), None)[1]
            yield f"ScatterNd{how} {len(indices)}", call, (indices, new)
    for how in ("Update", "Add", "Sub", "Mul", "Div", "Min", "Max"):
        for new in (f32(2, 3) + 3, np.array(1.7, np.float32)):
            v = tf.Variable(f32(4, 3))
            function = getattr(raw, f"ResourceScatter{how}")
            call = lambda i, u, v=v, f=function: (f(resource=v.handle, indices=i, updates=u), None)[1]
            yield f"Scatter{how} {new.shape}", call, (rows[:, 0], new)
    for number, key in enumerate((np.s_[1:3], np.s_[:, 1], np.s_[::2, -1:], np.s_[:])):
        v = tf.Variable(f32(4, 3))
        new = f32(*np.zeros((4, 3))[key].shape)
        yield f"part {number}", lambda u, v=v, k=key: (v[k].assign(u), None)[1], (new,)


FAMILIES = (lists, others, updates, scatters)
CASES = [pytest.param(*case[1:], id=f"{family.__name__}-{case[0]}") for family in FAMILIES for case in family()]


@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_an_op_equals_tensorflow(function: Callable[..., Any], arguments: tuple[np.ndarray, ...]) -> None:
    check(function, *arguments, atol=3e-6)


# -- orders of axes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["depth_to_space", "space_to_depth"])
@pytest.mark.parametrize("shape", [(2, 12, 4, 6), (1, 8, 2, 4)])
def test_blocks_of_pixels_in_the_other_order(name: str, shape: tuple[int, ...]) -> None:
    x, function = f32(*shape), getattr(tf.nn, name)
    (found,) = Program(lambda x: function(x, 2, "NCHW"), [x]).run()
    expected = tf.transpose(function(tf.transpose(x, [0, 2, 3, 1]), 2), [0, 3, 1, 2])
    np.testing.assert_array_equal(found, expected)


def test_what_tensorflow_has_for_compilers_only() -> None:
    from tensorflow.compiler.tf2xla.python import xla

    x, y = f32(1, 3), f32(1, 3)
    (found,) = Program(lambda x, y: raw.ParallelConcat(values=[x, y], shape=[2, 3]), [x, y]).run()
    np.testing.assert_array_equal(found, np.concatenate([x, y]))
    whole_, part = f32(4, 5), f32(2, 3)
    for at in ((1, 2), (0, 0), (2, 1)):
        (found,) = Program(xla.dynamic_update_slice, [whole_, part, np.array(at, np.int32)]).run()
        expected = whole_.copy()
        expected[at[0] : at[0] + 2, at[1] : at[1] + 3] = part
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bound", [0.5, 9.0, -9.0])
def test_loops_where_gradients_are_made_afterwards(bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are unrolled; where data decide, each iteration asks."""
    monkeypatch.setattr(GraphPlace, "differentiated", True)
    more = lambda i, y: (i + 1, y * 2 + tf.cast(i, F32))
    for go_on in (lambda i, y: i < 3, lambda i, y: (i < 3) & (tf.reduce_max(y) < bound)):
        check(lambda x, c=go_on: tf.while_loop(c, more, [0, x])[1], f32(2, 3))


# -- random numbers ----------------------------------------------------------------------------------------------------


def drawn(function: Callable[..., Any], *arguments: np.ndarray) -> np.ndarray:
    return Program(function, arguments).run()[0]


def with_key(function: Callable[..., Any], shape: list[int]) -> Any:
    key, counter = raw.StatelessRandomGetKeyCounter(seed=[3, 4])
    return function(shape=shape, key=key, counter=counter, alg=raw.StatelessRandomGetAlg())


def test_a_shuffle_keeps_the_rows() -> None:
    rows = np.arange(60, dtype=np.float32).reshape(20, 3)
    found = drawn(tf.random.shuffle, rows)
    assert not np.array_equal(found, rows)
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], rows)


def test_a_key_with_the_number_of_its_algorithm_draws_the_same() -> None:
    def both(x: Any) -> Any:
        key, counter, number = raw.StatelessRandomGetKeyCounterAlg(seed=[3, 4])
        numbers = raw.StatelessRandomUniformV2(shape=[50], key=key, counter=counter, alg=number)
        return numbers + x, with_key(raw.StatelessRandomUniformV2, [50]) + x, x * tf.cast(number, F32)

    first, second, number = Program(both, [np.ones((), np.float32)]).run()
    np.testing.assert_array_equal(first, second)
    assert number == 1


def test_whole_numbers_of_the_whole_range() -> None:
    found = drawn(
        lambda s: tf.random.stateless_uniform([4000], s, None, None, tf.int32), np.array([3, 4], np.int32)
    ).astype(np.float64)
    assert found.min() < -(2**31) * 0.99
    assert found.max() > 2**31 * 0.99
    assert abs(found.mean()) < 0.05 * 2**31


@pytest.mark.parametrize("stateless", [False, True])
def test_classes_are_drawn_as_often_as_they_are_likely(stateless: bool) -> None:
    likely = np.array([[0.1, 0.3, 0.6], [0.5, 0.5, 0.0]], np.float32)
    logits = np.log(likely + 1e-9)
    if stateless:
        found = drawn(lambda x, s: tf.random.stateless_categorical(x, 4000, s), logits, np.array([3, 4], np.int32))
    else:
        found = drawn(lambda x: tf.random.categorical(x, 4000), logits)
    shares = np.stack([(found == k).mean(1) for k in range(3)], 1)
    np.testing.assert_allclose(shares, likely, atol=0.04)


@pytest.mark.parametrize(
    ("call", "shares"),
    [
        (lambda n: raw.StatelessRandomUniform(shape=n, seed=[3, 4]), (0.5, 1 / np.sqrt(12))),
        (lambda n: raw.StatelessRandomNormal(shape=n, seed=[3, 4]), (0.0, 1.0)),
        (lambda n: with_key(raw.StatelessRandomNormalV2, n), (0.0, 1.0)),
        (lambda n: with_key(raw.StatelessRandomUniformV2, n), (0.5, 1 / np.sqrt(12))),
        (lambda n: raw.StatelessTruncatedNormal(shape=n, seed=[3, 4]), (0.0, 0.88)),
        (lambda n: tf.cast(raw.StatelessTruncatedNormal(shape=n, seed=[3, 4], dtype=tf.float16), F32), (0.0, 0.88)),
        (lambda n: tf.cast(tf.random.stateless_uniform(n, [3, 4], 2, 7, tf.int32), F32), (4.0, np.sqrt(2))),
    ],
    ids=["uniform", "normal", "normal of a key", "uniform of a key", "truncated", "truncated half", "whole"],
)
def test_numbers_of_a_seed_have_their_distribution(call: Callable[..., Any], shares: tuple[float, float]) -> None:
    found = drawn(lambda x: call([4000]) + x, np.zeros((), np.float32))
    np.testing.assert_allclose((found.mean(), found.std()), shares, atol=0.05)
