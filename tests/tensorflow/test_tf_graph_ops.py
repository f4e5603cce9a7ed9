"""Every op of the import against TensorFlow on the CPU: a table of functions and their arguments."""

# ruff: noqa: B008, E731 (the table is made of small functions that are bound where they are written)

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf
from graphcases import Program, check

Case = tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]
RNG = np.random.default_rng(1)
raw = tf.raw_ops


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.2, 3.0, shape).astype(np.float32)


def inside(*shape: int) -> np.ndarray:
    return RNG.uniform(-0.9, 0.9, shape).astype(np.float32)


def i32(*shape: int, low: int = -9, high: int = 10) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(np.int32)


def flags(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.5


SHAPES = ((), (0,), (3, 4))


def unary() -> Iterator[Case]:
    anywhere = (
        "Abs Atan Asinh Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor IsFinite IsInf IsNan Neg Relu Relu6 Rint Round Selu "
    )
    anywhere += "Sigmoid Sign Sin Sinh Softplus Softsign Square Tan Tanh"
    draws = dict.fromkeys(anywhere.split(), f32)
    draws |= dict.fromkeys("Log Log1p Reciprocal Inv Rsqrt Sqrt".split(), positive)
    draws |= dict.fromkeys("Acos Asin Atanh Erfinv".split(), inside)
    draws["Acosh"] = lambda *shape: positive(*shape) + 1
    draws["Ndtri"] = lambda *shape: abs(inside(*shape)) + 0.01
    for name, draw in draws.items():
        operand = next(arg.name for arg in _definition(name).input_arg)
        function = getattr(raw, name)
        for shape in SHAPES:
            yield f"{name}{shape}", lambda x, f=function, k=operand: f(**{k: x}), (draw(*shape),)
        if name in ("Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Sqrt"):
            yield f"{name} half", lambda x, f=function, k=operand: f(**{k: x}), (draw(5).astype(np.float16),)
    for name in ("Abs", "Neg", "Sign", "Square", "Invert", "Relu"):
        operand = next(arg.name for arg in _definition(name).input_arg)
        yield f"{name} int32", lambda x, f=getattr(raw, name), k=operand: f(**{k: x}), (i32(7),)
    yield "LogicalNot", lambda x: raw.LogicalNot(x=x), (flags(5),)


def _definition(name: str) -> Any:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name)


def binary() -> Iterator[Case]:
    pairs = (((), ()), ((0,), (1,)), ((3, 4), (4,)), ((2, 1, 4), (3, 1)))
    floats = "Add AddV2 Sub Mul RealDiv Maximum Minimum SquaredDifference Equal NotEqual Less LessEqual Greater "
    floats += "GreaterEqual DivNoNan MulNoNan Xdivy FloorMod FloorDiv Atan2 Div"
    for name in floats.split():
        for left, right in pairs:
            function = getattr(raw, name)
            yield f"{name}{left}{right}", lambda x, y, f=function: f(x=x, y=y), (f32(*left), f32(*right))
    for name in ("Pow", "Xlogy", "Xlog1py"):
        function = getattr(raw, name)
        yield name, lambda x, y, f=function: f(x=x, y=y), (positive(3, 4), positive(4))
    whole = "AddV2 Sub Mul FloorDiv FloorMod TruncateDiv TruncateMod Maximum Minimum Equal Less GreaterEqual "
    whole += "SquaredDifference BitwiseAnd BitwiseOr BitwiseXor"
    for name in whole.split():
        function = getattr(raw, name)
        arrays = i32(3, 4), np.where(i32(4) < 0, -3, 2).astype(np.int32)
        yield f"{name} int32", lambda x, y, f=function: f(x=x, y=y), arrays
    shifts = i32(4, low=0, high=9), i32(4, low=0, high=5)
    yield "LeftShift", lambda x, y: raw.LeftShift(x=x, y=y), shifts
    yield "RightShift", lambda x, y: raw.RightShift(x=x, y=y), shifts
    for name in ("LogicalAnd", "LogicalOr", "Equal", "NotEqual"):
        function = getattr(raw, name)
        yield f"{name} bool", lambda x, y, f=function: f(x=x, y=y), (flags(3, 4), flags(4))
    for exponent in (-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 2.5):
        yield f"Pow {exponent}", lambda x, e=exponent: x**e, (positive(5),)
    zeros = np.zeros(3, np.float32)
    yield "DivNoNan zero", lambda x, y: raw.DivNoNan(x=x, y=y), (f32(3), zeros)
    yield "Xlogy zero", lambda x, y: raw.Xlogy(x=x, y=y), (zeros, zeros)
    yield "AddN", lambda x, y, z: raw.AddN(inputs=[x, y, z]), (f32(3), f32(3), f32(3))
    yield "Cast to int", lambda x: tf.cast(x, tf.int32), (f32(3) * 9,)
    yield "Cast to bool", lambda x: tf.cast(x, tf.bool), (i32(9, low=0, high=2),)
    yield "Cast to half", lambda x: tf.cast(x, tf.float16), (f32(3),)
    yield "Cast int64", lambda x: tf.cast(tf.cast(x, tf.int64), tf.float32), (i32(3),)
    yield "ApproximateEqual", lambda x, y: raw.ApproximateEqual(x=x, y=y, tolerance=0.5), (f32(9), f32(9))
    yield "numbers", lambda x: 2.0 * x + 1.0 - x / 3.0, (f32(3),)


def products() -> Iterator[Case]:
    for a in (False, True):
        for b in (False, True):
            x, y = f32(3, 2) if a else f32(2, 3), f32(4, 3) if b else f32(3, 4)
            yield f"MatMul {a} {b}", lambda x, y, a=a, b=b: tf.matmul(x, y, a, b), (x, y)
            x, y = f32(5, 3, 2) if a else f32(5, 2, 3), f32(4, 3) if b else f32(3, 4)
            yield f"BatchMatMul {a} {b}", lambda x, y, a=a, b=b: tf.matmul(x, y, a, b), (x, y)
    yield "MatMul half", lambda x, y: x @ y, (f32(2, 3).astype(np.float16), f32(3, 4).astype(np.float16))
    yield "BiasAdd", tf.nn.bias_add, (f32(2, 3), f32(3))
    yield "BiasAdd NCHW", lambda x, b: tf.nn.bias_add(x, b, "NCHW"), (f32(2, 3, 4, 5), f32(3))
    yield "BiasAddGrad", lambda x: raw.BiasAddGrad(out_backprop=x), (f32(2, 3, 4),)
    yield "BiasAddGrad NCHW", lambda x: raw.BiasAddGrad(out_backprop=x, data_format="NCHW"), (f32(2, 3, 4, 5),)
    for equation, left, right in (
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
        ("abc,cde->abde", (2, 3, 4), (4, 5, 6)),
        ("aecd,abcd->acbe", (2, 3, 4, 5), (2, 6, 4, 5)),
        ("acbe,aecd->abcd", (2, 4, 6, 3), (2, 3, 4, 5)),
        ("...ij,jk->...ik", (5, 2, 2, 3), (3, 4)),
        ("i,j->ij", (2,), (3,)),
        ("i,i->", (3,), (3,)),
        ("ij,ij->j", (2, 3), (2, 3)),
        ("ijk,jl->l", (2, 3, 4), (3, 5)),
    ):
        yield equation, lambda x, y, e=equation: tf.einsum(e, x, y), (f32(*left), f32(*right))
    yield "ij->ji", lambda x: tf.einsum("ij->ji", x), (f32(2, 3),)
    yield "ijk->k", lambda x: tf.einsum("ijk->k", x), (f32(2, 3, 4),)
    yield "tensordot", lambda x, y: tf.tensordot(x, y, [[1], [0]]), (f32(2, 3), f32(3, 4, 2))
    yield "three", lambda x, y, z: tf.einsum("ij,jk,kl->il", x, y, z), (f32(2, 3), f32(3, 4), f32(4, 5))


def convolutions() -> Iterator[Case]:
    x, w = f32(2, 7, 6, 4), f32(3, 2, 4, 5)
    for padding in ("SAME", "VALID", [[0, 0], [1, 2], [0, 1], [0, 0]]):
        for strides in (1, 2):
            name = f"{padding} {strides}"
            yield f"Conv2D {name}", lambda x, w, p=padding, s=strides: tf.nn.conv2d(x, w, s, p), (x, w)
    yield "Conv2D dilated", lambda x, w: tf.nn.conv2d(x, w, 1, "SAME", dilations=2), (x, w)
    yield "Conv2D groups", lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), (x, f32(3, 3, 2, 6))
    yield "Conv1D", lambda x, w: tf.nn.conv1d(x, w, 2, "SAME"), (f32(2, 7, 3), f32(3, 3, 5))
    yield "Conv3D", lambda x, w: tf.nn.conv3d(x, w, [1, 1, 2, 1, 1], "SAME"), (f32(2, 4, 5, 3, 2), f32(2, 3, 2, 2, 3))
    depthwise = f32(3, 3, 4, 2)
    for s in (1, 2):
        yield f"depthwise {s}", lambda x, w, s=s: tf.nn.depthwise_conv2d(x, w, [1, s, s, 1], "SAME"), (x, depthwise)
    yield (
        "separable",
        lambda x, d, p: tf.nn.separable_conv2d(x, d, p, [1, 1, 1, 1], "VALID"),
        (x, depthwise, f32(1, 1, 8, 3)),
    )
    yield (
        "conv2d_transpose",
        lambda x, w: tf.nn.conv2d_transpose(x, w, [2, 14, 12, 3], 2, "SAME"),
        (x, f32(3, 3, 3, 4)),
    )
    yield (
        "conv3d_transpose",
        lambda x, w: tf.nn.conv3d_transpose(x, w, [1, 4, 6, 8, 2], 2, "SAME"),
        (f32(1, 2, 3, 4, 3), f32(2, 2, 2, 2, 3)),
    )
    yield "atrous", lambda x, w: tf.nn.atrous_conv2d(x, w, 2, "SAME"), (x, w)
    yield (
        "Conv3D gradients",
        squared(lambda x, w: tf.nn.conv3d(x, w, [1, 1, 1, 1, 1], "SAME"), 2),
        (f32(2, 4, 5, 3, 2), f32(2, 3, 2, 2, 3)),
    )


def convolution_gradients() -> Iterator[Case]:
    x, w = f32(2, 7, 6, 4), f32(3, 2, 4, 5)
    for padding in ("SAME", "VALID", [[0, 0], [1, 2], [0, 1], [0, 0]]):
        for s in (1, 2):
            function = lambda x, w, p=padding, s=s: tf.nn.conv2d(x, w, s, p)
            yield f"Conv2D {padding} {s}", squared(function, 2), (x, w)
    yield "dilated", squared(lambda x, w: tf.nn.conv2d(x, w, 1, "VALID", dilations=2), 2), (x, w)
    yield "groups", squared(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), 2), (x, f32(3, 3, 2, 6))
    depthwise = f32(3, 3, 4, 2)
    for p in ("SAME", "VALID"):
        yield (
            f"depthwise {p}",
            squared(lambda x, w, p=p: tf.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], p), 2),
            (x, depthwise),
        )
    transposed = lambda x, w: tf.nn.conv2d_transpose(x, w, [2, 14, 12, 3], 2, "SAME")
    yield "transposed", squared(transposed, 2), (x, f32(3, 3, 3, 4))


def squared(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The gradients of the sum of the squares of a function for its first ``count`` arguments."""

    def gradients(*arguments: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            for argument in arguments[:count]:
                tape.watch(argument)
            results = tf.nest.flatten(function(*arguments))
            loss = tf.add_n([tf.reduce_sum(tf.cast(r, tf.float32) ** 2) for r in results])
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, list(arguments[:count]))]

    return gradients


def windows() -> Iterator[Case]:
    x = f32(2, 7, 6, 3)
    for kind in (tf.nn.max_pool2d, tf.nn.avg_pool2d):
        for padding in ("SAME", "VALID"):
            for k, s in ((2, 2), (3, 2), (3, 1)):
                function = lambda x, f=kind, p=padding, k=k, s=s: f(x, k, s, p)
                name = f"{kind.__name__} {padding} {k} {s}"
                yield name, function, (x,)
                yield f"{name} gradient", squared(function, 1), (x,)
    yield "max_pool1d", lambda x: tf.nn.max_pool1d(x, 2, 2, "SAME"), (f32(2, 7, 3),)
    yield "max_pool3d", lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME"), (f32(1, 4, 5, 3, 2),)
    yield "avg_pool3d gradient", squared(lambda x: tf.nn.avg_pool3d(x, 2, 2, "VALID"), 1), (f32(1, 4, 5, 3, 2),)
    for half in (False, True):
        for method in (raw.ResizeBilinear, raw.ResizeNearestNeighbor):
            function = lambda x, f=method, h=half: f(images=x, size=[5, 9], half_pixel_centers=h)
            yield f"{method.__name__} {half}", function, (x,)
            yield f"{method.__name__} {half} gradient", squared(function, 1), (x,)
    for padding in ("SAME", "VALID"):
        patches = lambda x, p=padding: tf.image.extract_patches(x, [1, 3, 2, 1], [1, 2, 2, 1], [1, 1, 2, 1], p)
        yield f"extract_patches {padding}", patches, (x,)
    corners = lambda x: raw.ResizeBilinear(images=x, size=[5, 9], align_corners=True)
    yield "ResizeBilinear corners", corners, (x,)
    lrn = lambda x: tf.nn.local_response_normalization(x, 2, 1.0, 0.3, 0.75)
    yield "LRN", lrn, (f32(2, 3, 3, 9),)
    yield "LRN gradient", squared(lrn, 1), (f32(2, 3, 3, 9),)


def networks() -> Iterator[Case]:
    for form, shape in (("NHWC", (4, 5, 3, 6)),):

        def norm(x, s, b, m, v, training, form=form):
            return raw.FusedBatchNormV3(
                x=x, scale=s, offset=b, mean=m, variance=v, epsilon=1e-3, data_format=form, is_training=training,
                exponential_avg_factor=1.0,
            )[:3]  # fmt: skip

        arrays = f32(*shape), positive(6), f32(6), f32(6), positive(6)
        for training in (True, False):
            yield f"batch norm {training}", lambda *a, t=training, n=norm: n(*a, t), arrays
            gradient = squared(lambda *a, t=training, n=norm: tf.sin(n(*a, t)[0]), 3)
            yield f"batch norm {training} gradient", gradient, arrays
    for name in ("softmax", "log_softmax"):
        function = getattr(tf.nn, name)
        yield name, function, (f32(3, 5),)
        yield f"{name} gradient", squared(function, 1), (f32(2, 3, 5),)
        yield f"{name} axis", lambda x, f=function: f(x, axis=1), (f32(2, 3, 5),)
    labels = i32(4, low=0, high=5)
    sparse = lambda z, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, z)
    dense = lambda z, y: tf.nn.softmax_cross_entropy_with_logits(y, z)
    yield "sparse cross entropy", sparse, (f32(4, 5), labels)
    yield "sparse cross entropy gradient", squared(sparse, 1), (f32(4, 5), labels)
    yield "sparse cross entropy int64", sparse, (f32(2, 4, 5), i32(2, 4, low=0, high=5).astype(np.int64))
    for scale in (50, 1e4):
        yield f"sparse cross entropy of {scale:g}", sparse, (scale * f32(4, 5), labels)
        yield f"sparse cross entropy of {scale:g} gradient", squared(sparse, 1), (scale * f32(4, 5), labels)
        yield from keras_losses(scale)
    p = np.abs(f32(4, 5))
    p /= p.sum(1, keepdims=True)
    yield "cross entropy", dense, (f32(4, 5), p)
    yield "cross entropy gradient", squared(dense, 2), (f32(4, 5), p)
    yield "sigmoid cross entropy", lambda z, y: tf.nn.sigmoid_cross_entropy_with_logits(y, z), (f32(4, 5), p)
    yield (
        "sigmoid cross entropy gradient",
        squared(lambda z, y: tf.nn.sigmoid_cross_entropy_with_logits(y, z), 1),
        (f32(4, 5), p),
    )
    for name in "relu relu6 elu selu leaky_relu sigmoid tanh softplus softsign gelu silu".split():
        yield f"{name} gradient", squared(getattr(tf.nn, name), 1), (f32(3, 4) * 3,)
    for name in "sqrt rsqrt reciprocal log exp square abs sin cos tan asin atan erf log1p expm1 cumprod".split():
        function = getattr(tf.math, name)
        yield f"{name} gradient", squared(function, 1), (RNG.uniform(0.1, 0.9, (3, 4)).astype(np.float32),)
    yield "moments", lambda x: tf.nn.moments(x, [0, 1]), (f32(3, 4, 5),)
    yield "l2_normalize gradient", squared(lambda x: tf.nn.l2_normalize(x, 1), 1), (f32(3, 4),)
    yield "L2Loss", tf.nn.l2_loss, (f32(3, 4),)
    mixed = lambda x, s, b: raw.FusedBatchNormV3(x=x, scale=s, offset=b, mean=[], variance=[], epsilon=1e-3)[0]
    yield "batch norm half", mixed, (f32(4, 5, 3, 6).astype(np.float16), positive(6), f32(6))


def keras_losses(scale: float) -> Iterator[Case]:
    """Losses of Keras and their gradients, for logits of this size and for what becomes of them."""
    classes, binary, margins = tf.constant([0, 4, 2]), tf.constant([[0.0], [1.0], [1.0]]), (scale * f32(3, 1),)
    scores = (scale * f32(3, 5),)
    hot = tf.one_hot(classes, 5)
    for name, labels, arrays in (
        ("sparse_categorical_crossentropy", classes, scores),
        ("categorical_crossentropy", hot, scores),
        ("categorical_focal_crossentropy", hot, scores),
        ("binary_crossentropy", binary, margins),
        ("binary_focal_crossentropy", binary, margins),
    ):
        ends = tf.nn.sigmoid if name.startswith("binary") else tf.nn.softmax
        function = getattr(tf.keras.losses, name)
        forms = {
            "from logits": lambda z, f=function, y=labels: f(y, z, from_logits=True),
            # In a graph, Keras takes the logits of what comes straight from a softmax.
            "of probabilities": lambda z, f=function, y=labels, e=ends: f(y, e(z) * 1.0),
        }
        for form, loss in forms.items():
            yield f"{name} {form} of {scale:g}", loss, arrays
            yield f"{name} {form} of {scale:g} gradient", squared(loss, 1), arrays


def reductions() -> Iterator[Case]:
    for name in "sum mean max min prod".split():
        function = getattr(tf, f"reduce_{name}")
        for axis in (None, 0, [0, 2], -1, []):
            yield f"{name} {axis}", lambda x, f=function, a=axis: f(x, a), (f32(2, 3, 4),)
            if name != "prod" or axis != []:
                yield (
                    f"{name} {axis} gradient",
                    squared(lambda x, f=function, a=axis: f(x, a, True), 1),
                    (f32(2, 3, 4),),
                )
        yield f"{name} scalar", function, (f32(),)
        yield f"{name} int", lambda x, f=function: f(x, 1), (i32(3, 4, low=1),)
    yield "sum empty", lambda x: tf.reduce_sum(x, 0), (f32(0, 3),)
    yield "mean half", tf.reduce_mean, (f32(30).astype(np.float16),)
    for name in ("reduce_all", "reduce_any"):
        yield name, lambda x, f=getattr(tf, name): f(x, 1), (flags(4, 2),)
    yield "euclidean", lambda x: tf.math.reduce_euclidean_norm(x, 1), (f32(3, 4),)
    yield "logsumexp", lambda x: tf.reduce_logsumexp(x, 1), (f32(3, 4),)
    yield "variance", lambda x: tf.math.reduce_variance(x, 1), (f32(3, 4),)
    yield "std gradient", squared(lambda x: tf.math.reduce_std(x, 1), 1), (f32(3, 4),)
    for axis in (0, 1, -1):
        yield f"argmax {axis}", lambda x, a=axis: tf.argmax(x, a), (f32(3, 4),)
        yield f"argmin {axis}", lambda x, a=axis: tf.argmin(x, a, tf.int32), (i32(3, 4),)
    for exclusive in (False, True):
        for reverse in (False, True):
            arguments = {"axis": 1, "exclusive": exclusive, "reverse": reverse}
            yield f"cumsum {exclusive} {reverse}", lambda x, k=arguments: tf.cumsum(x, **k), (f32(3, 4),)
            yield (
                f"cumsum {exclusive} {reverse} gradient",
                squared(lambda x, k=arguments: tf.cumsum(x, **k), 1),
                (f32(3, 4),),
            )
            yield f"cumprod {exclusive} {reverse}", lambda x, k=arguments: tf.math.cumprod(x, **k), (f32(3, 4),)
    yield "cumsum int", lambda x: tf.cumsum(x), (i32(5),)
    for arguments in ({}, {"axis": -1, "reverse": True}, {"exclusive": True}):
        running = lambda x, k=arguments: tf.math.cumulative_logsumexp(x, **k)
        yield f"cumulative_logsumexp {arguments}", running, (f32(3, 4) * 40,)
    yield "cumulative_logsumexp gradient", squared(lambda x: tf.math.cumulative_logsumexp(x, 1), 1), (f32(3, 4),)
    rising = np.arange(12, dtype=np.float32).reshape(2, 6) // 2
    for side in ("left", "right"):
        yield f"searchsorted {side}", lambda x, y, s=side: tf.searchsorted(x, y, s), (rising, f32(2, 3) * 3)
    yield "add_n of numbers", lambda x: x * tf.add_n([tf.constant(2.0), tf.constant(3.0)]), (f32(2),)
    yield "top_k", lambda x: tf.math.top_k(x, 2), (f32(3, 5),)
    yield "top_k gradient", squared(lambda x: tf.math.top_k(x, 2)[0], 1), (f32(3, 5),)
    yield "sort", lambda x: tf.sort(x), (f32(3, 5),)
    yield "argsort", lambda x: tf.argsort(x, direction="DESCENDING"), (f32(3, 5),)
    yield "in_top_k", lambda p, t: tf.math.in_top_k(t, p, 2), (f32(6, 5), i32(6, low=0, high=5))
    yield "bincount", lambda x: raw.DenseBincount(input=x, size=6, weights=tf.zeros([0])), (i32(20, low=0, high=6),)
    yield "confusion", lambda x, y: tf.math.confusion_matrix(x, y, 4), (i32(9, low=0, high=4), i32(9, low=0, high=4))


def shapes() -> Iterator[Case]:
    x = f32(2, 3, 4)
    yield "reshape", lambda x: tf.reshape(x, [4, -1]), (x,)
    yield "shape arithmetic", lambda x: tf.reshape(x, tf.stack([tf.shape(x)[0] * 2, -1])), (x,)
    yield "expand_dims", lambda x: (tf.expand_dims(x, 1), tf.expand_dims(x, -1)), (x,)
    yield "squeeze", lambda x: (tf.squeeze(x), tf.squeeze(x, [0])), (f32(1, 3, 1, 2),)
    yield "transpose", lambda x: (tf.transpose(x), tf.transpose(x, [1, 0, 2])), (x,)
    yield "reverse", lambda x: tf.reverse(x, [0, -1]), (x,)
    yield "roll", lambda x: tf.roll(x, [1, -1], [0, 2]), (x,)
    yield "concat", lambda x, y: tf.concat([x, y, x], 1), (f32(2, 3), f32(2, 2))
    yield "concat empty", lambda x, y: tf.concat([x, y], 0), (f32(0, 3), f32(2, 3))
    yield "concat gradient", squared(lambda x, y: tf.concat([x * 2, y], 1), 2), (f32(2, 3), f32(2, 2))
    yield "stack", lambda x, y: tf.stack([x, y], 1), (f32(2, 3), f32(2, 3))
    yield "unstack", lambda x: tf.unstack(x, axis=1), (x,)
    yield "unstack one", lambda x: tf.unstack(x, axis=0), (f32(1, 3),)
    yield "split", lambda x: tf.split(x, 2, 2), (x,)
    yield "split sizes", lambda x: tf.split(x, [1, -1], 1), (x,)
    yield "split gradient", squared(lambda x: tf.split(x * 2, [1, 2], 1)[1], 1), (x,)
    yield "slice", lambda x: tf.slice(x, [0, 1, 2], [2, -1, 1]), (x,)
    yield "slice gradient", squared(lambda x: tf.slice(x, [0, 1, 2], [2, -1, 1]), 1), (x,)
    yield "tile", lambda x: tf.tile(x, [1, 2, 3]), (x,)
    yield "tile gradient", squared(lambda x: tf.tile(x, [2, 1, 3]), 1), (x,)
    yield "repeat", lambda x: tf.repeat(x, 3, 1), (x,)
    yield "broadcast_to", lambda x: tf.broadcast_to(x, [5, 2, 3]), (f32(2, 1),)
    yield "broadcast gradient", squared(lambda x, y: x * y, 2), (f32(2, 3), f32(3))
    yield "broadcast gradient 2", squared(lambda x, y: x / y, 2), (f32(2, 1, 3), positive(4, 1))
    yield "fill", lambda x: tf.fill([2, 3], x), (f32(),)
    yield "zeros_like", lambda x: (tf.zeros_like(x), tf.ones_like(x) * x), (x,)
    yield "range", lambda x: tf.range(4.0) + x, (f32(4),)
    for mode in ("CONSTANT", "REFLECT", "SYMMETRIC"):
        function = lambda x, m=mode: tf.pad(x, [[1, 0], [2, 1]], m)
        yield f"pad {mode}", function, (f32(3, 4),)
        yield f"pad {mode} gradient", squared(function, 1), (f32(3, 4),)
    yield "pad number", lambda x: tf.pad(x, [[1, 0], [2, 1]], constant_values=7.0), (f32(3, 4),)
    yield "pad bool", lambda x: tf.pad(x, [[1, 0], [2, 1]]), (flags(3, 4),)
    yield "pad int", lambda x: tf.pad(x, [[1, 0], [2, 1]]), (i32(3, 4),)
    for low, high in ((-1, 0), (0, -1), (1, 1), (0, 0)):
        yield f"band {low} {high}", lambda x, a=low, b=high: tf.linalg.band_part(x, a, b), (f32(2, 4, 5),)
    yield "diag", lambda x: tf.linalg.diag(x), (f32(2, 3),)
    wide = {"k": -1, "num_rows": 4, "num_cols": 7, "padding_value": 1.5}
    yield "diag wide", lambda x: tf.linalg.diag(x, **wide), (f32(2, 3),)
    for k in (-1, 2):
        yield f"diag_part {k}", lambda x, k=k: tf.linalg.diag_part(x, k=k), (f32(2, 3, 4),)
        yield f"set_diag {k}", lambda x, d, k=k: tf.linalg.set_diag(x, d, k=k), (f32(2, 3, 4), f32(2, 2))
    yield "diag_part gradient", squared(lambda x: tf.linalg.diag_part(x, k=-1), 1), (f32(3, 5),)
    yield "diag_part", lambda x: tf.linalg.diag_part(x), (f32(2, 3, 4),)
    yield "set_diag", lambda x, d: tf.linalg.set_diag(x, d), (f32(2, 3, 4), f32(2, 3))
    yield "eye", lambda x: x @ tf.eye(4), (f32(2, 4),)
    yield "depth_to_space", lambda x: tf.nn.depth_to_space(x, 2), (f32(2, 3, 2, 8),)
    yield "space_to_depth", lambda x: tf.nn.space_to_depth(x, 2), (f32(2, 4, 6, 3),)
    yield "space_to_batch", lambda x: tf.space_to_batch(x, [2, 3], [[1, 0], [0, 1]]), (f32(2, 3, 5, 2),)
    yield "space_to_batch 1", lambda x: tf.space_to_batch(x, [3], [[1, 0]]), (f32(2, 5, 2),)
    yield "space_to_batch 3", lambda x: tf.space_to_batch(x, [2, 1, 2], [[0, 0]] * 3), (f32(2, 4, 3, 2, 2),)
    yield "batch_to_space 3", lambda x: tf.batch_to_space(x, [2, 1, 2], [[0, 1], [0, 0], [0, 0]]), (f32(8, 2, 3, 1, 2),)
    yield "batch_to_space", lambda x: tf.batch_to_space(x, [2, 3], [[1, 0], [0, 1]]), (f32(12, 3, 4, 2),)
    yield "meshgrid", lambda x, y: tf.meshgrid(x, y), (f32(3), f32(4))


def slices() -> Iterator[Case]:
    x = f32(4, 5, 6)
    keys = [
        np.s_[1], np.s_[1:3], np.s_[:, 2], np.s_[..., 1], np.s_[..., 1:4:2, ::-1], np.s_[:, None, 1], np.s_[-1, :, ::2],
        np.s_[3:0:-1], np.s_[None, ..., None], np.s_[2:2], np.s_[:], np.s_[::-2, 1:, -2],
    ]  # fmt: skip
    for number, key in enumerate(keys):
        yield f"{number}", lambda x, k=key: x[k] * 1.0, (x,)
        yield f"{number} gradient", squared(lambda x, k=key: x[k], 1), (x,)
    yield "index", lambda x, i: x[i], (x, np.array(2, np.int32))
    yield "two indices", lambda x, i: x[i[0], i[1]], (x, np.array([2, 3], np.int32))
    yield (
        "update",
        lambda x, y: raw.TensorStridedSliceUpdate(input=x, begin=[1, 0], end=[3, 2], strides=[1, 1], value=y),
        (f32(4, 5), f32(2, 2)),
    )


def selection() -> Iterator[Case]:
    yield "where", lambda c, x, y: tf.where(c, x, y), (flags(3, 1), f32(3, 4), f32(4))
    yield "where gradient", squared(lambda x, y, c: tf.where(c, x, y), 2), (f32(3, 4), f32(4), flags(3, 1))
    yield "Select rows", lambda c, x, y: raw.Select(condition=c, x=x, y=y), (flags(3), f32(3, 4), f32(3, 4))
    yield "clip", lambda x: tf.clip_by_value(x, -0.5, 0.5), (f32(3, 4),)
    yield "clip gradient", squared(lambda x: tf.clip_by_value(x, -0.5, 0.5), 1), (f32(3, 4),)
    yield "clip_by_norm", lambda x: tf.clip_by_norm(x, 1.0), (f32(3, 4),)
    yield "clip_by_global_norm", lambda x, y: tf.clip_by_global_norm([x, y], 1.0), (f32(3, 4), f32(2))
    for axis in (-1, 0, 1):
        yield f"one_hot {axis}", lambda i, a=axis: tf.one_hot(i, 4, axis=a), (i32(2, 3, low=0, high=4),)
    yield "one_hot numbers", lambda i: tf.one_hot(i, 4, 3.0, -1.0), (i32(5, low=-1, high=5),)
    yield "one_hot bool", lambda i: tf.one_hot(i, 4, True, False), (i32(5, low=0, high=4),)
    table = f32(5, 3, 4)
    for axis, size in ((0, 5), (1, 3), (2, 4)):
        function = lambda x, i, a=axis: tf.gather(x, i, axis=a)
        yield f"gather {axis}", function, (table, i32(2, 3, low=0, high=size))
        yield f"gather {axis} gradient", squared(function, 1), (table, i32(2, 3, low=0, high=size))
    yield "gather scalar", tf.gather, (table, i32(low=0, high=5))
    for axis in (1, 2):
        function = lambda x, i, a=axis: tf.gather(x, i, axis=a, batch_dims=1)
        yield f"gather batch {axis}", function, (table, i32(5, 2, low=0, high=3))
        yield f"gather batch {axis} gradient", squared(function, 1), (table, i32(5, 2, low=0, high=3))
    for batch in (1, -1, 2):
        pick = lambda x, i, b=batch: tf.gather(x, i, batch_dims=b)
        index = i32(*((5, 3) if batch == 2 else (5,)), low=0, high=3)
        yield f"gather one of each row {batch}", squared(pick, 1), (table, index)
    rows = np.stack([i32(6, low=0, high=5), i32(6, low=0, high=3)], 1)
    yield "gather_nd", tf.gather_nd, (table, rows)
    yield "gather_nd gradient", squared(tf.gather_nd, 1), (table, rows)
    yield "gather_nd batch", lambda x, i: tf.gather_nd(x, i, batch_dims=1), (table, i32(5, 2, 1, low=0, high=3))
    yield "scatter_nd", lambda i, u: tf.scatter_nd(i, u, [5, 3, 4]), (rows, f32(6, 4))
    yield "scatter_nd rows", lambda i, u: tf.scatter_nd(i, u, [7]), (i32(6, 1, low=0, high=7), f32(6))
    for how in ("add", "sub", "max", "min"):
        function = getattr(tf, f"tensor_scatter_nd_{how}")
        yield f"tensor_scatter {how}", function, (table, rows, f32(6, 4))
    distinct = np.array([[0, 1], [3, 2], [4, 0]], np.int32)
    yield "tensor_scatter update", tf.tensor_scatter_nd_update, (table, distinct, f32(3, 4))
    for how in ("sum", "max", "min", "prod", "mean"):
        function = lambda x, i, f=getattr(tf.math, f"unsorted_segment_{how}"): f(x, i, 4)
        ids = np.array([0, 3, 1, 0, 2, 3], np.int32)
        yield f"segment {how}", function, (f32(6, 3), ids)
        some = np.array([2, -1, 0, -1, 2, 3], np.int32)
        yield f"segment {how} without some of data", squared(function, 1), (f32(6, 3), some)
        function = lambda x, f=getattr(tf.math, f"unsorted_segment_{how}"): f(x, [[0, -1], [1, 0], [-1, 3]], 4)
        yield f"segment {how} without some", function, (f32(3, 2, 3),)
    sorted_ids = tf.constant([0, 0, 1, 3, 3, 3])
    for how in ("sum", "max", "min", "prod", "mean"):
        function = lambda x, f=getattr(tf.math, f"segment_{how}"): f(x, sorted_ids)
        yield f"sorted segment {how}", function, (f32(6, 3),)
    yield "embedding", lambda t, i: tf.nn.embedding_lookup(t, i), (f32(9, 4), i32(2, 3, low=0, high=9))
    lengths = i32(3, low=0, high=5)
    yield "reverse_sequence", lambda x, n: tf.reverse_sequence(x, n, 1), (f32(3, 5, 2), lengths)
    yield "reverse_sequence axes", lambda x, n: tf.reverse_sequence(x, n, 0, 2), (f32(5, 2, 3), lengths)
    mask = lambda x: tf.sequence_mask(x, 5, tf.float32)
    yield "sequence_mask", mask, (i32(4, low=0, high=6),)


FAMILIES = (
    unary, binary, products, convolutions, convolution_gradients, windows, networks, reductions, shapes, slices,
    selection,
)  # fmt: skip
CASES = [pytest.param(*case[1:], id=f"{family.__name__}-{case[0]}") for family in FAMILIES for case in family()]


@pytest.mark.rowless
@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_an_op_equals_tensorflow(function: Callable[..., Any], arguments: tuple[np.ndarray, ...]) -> None:
    half = any(a.dtype == np.float16 for a in arguments)
    try:
        check(function, *arguments, rtol=2e-3 if half else 1e-5, atol=2e-3 if half else 3e-6)
    except tf.errors.InvalidArgumentError as error:
        # Which gradients of convolutions TensorFlow has depends on the processor: some need oneDNN's kernels.
        if not ("CPU implementations" in str(error) or "grouped convolution" in str(error)):
            raise
        pytest.skip("TensorFlow has no kernel for this processor")


@pytest.mark.heavy
@pytest.mark.parametrize("family", [family.__name__ for family in FAMILIES])
def test_a_family_builds_as_before(family: str) -> None:
    """What all its cases build is in one golden row (:mod:`built`)."""
    for case in CASES:
        if str(case.id).startswith(f"{family}-"):
            Program(*case.values)
