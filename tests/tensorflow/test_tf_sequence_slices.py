"""Slices of sequences against NumPy, with their gradients."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from kerasruns import ipus, same  # noqa: E402

from ipuperf.tensorflow.python.ipu.ops import slicing_ops  # noqa: E402

RNG = np.random.default_rng(5)
SRC, DST = RNG.normal(size=(6, 2, 3)).astype("float32"), RNG.normal(size=(8, 2, 3)).astype("float32")
COUNTS, SOURCES, TARGETS = (np.array(n, np.int32) for n in ([2, 3], [4, 1], [0, 5]))


def written(dst, src, counts, sources, targets):
    out = np.array(dst)
    for count, source, target in zip(counts, sources, targets):
        out[target : target + count] = src[source : source + count]
    return out


def run(function, *arguments):
    """The result on the IPU and the gradient of its weighted sum for the last two floating-point arguments."""
    with ipus(1):

        @tf.function(jit_compile=True)
        def program(*given):
            floats = [t for t in given if t.dtype.is_floating]
            with tf.GradientTape() as tape:
                tape.watch(floats)
                y = function(*given)
                weights = tf.reshape(tf.range(tf.size(y), dtype=tf.float32), y.shape)
                loss = tf.reduce_sum(weights * y)
            grads = tape.gradient(loss, floats, unconnected_gradients="zero")
            return y, [tf.convert_to_tensor(g) for g in grads]

        return tf.distribute.get_strategy().run(program, args=arguments)


@pytest.mark.parametrize("zero", [True, False])
def test_rows_are_written_where_the_program_says(zero):
    y, (to_dst, to_src) = run(
        lambda d, s, *n: slicing_ops.sequence_slice(d, s, *n, zero), DST, SRC, COUNTS, SOURCES, TARGETS
    )
    same(y, written(np.zeros_like(DST) if zero else DST, SRC, COUNTS, SOURCES, TARGETS))
    weights = np.arange(DST.size, dtype=np.float32).reshape(DST.shape)
    expected = np.zeros_like(SRC)
    for count, source, target in zip(COUNTS, SOURCES, TARGETS):
        expected[source : source + count] += weights[target : target + count]
    same(to_src, expected)
    if not zero:
        same(to_dst, written(weights, np.zeros_like(SRC), COUNTS, SOURCES, TARGETS))


def test_packing_undoes_unpacking():
    y, _ = run(lambda s, c, o: slicing_ops.sequence_slice_unpack(s, c, o, 5), SRC, COUNTS, SOURCES)
    same(y, np.concatenate([SRC[4:6], SRC[1:4]]))
    y, _ = run(
        lambda d, s, c, o: slicing_ops.sequence_slice_pack(d, s, c, o, True), np.zeros_like(SRC), y, COUNTS, SOURCES
    )
    same(y, np.where(np.isin(np.arange(6), [1, 2, 3, 4, 5])[:, None, None], SRC, 0))


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="num_elems, src_offsets must have matching, nonzero shapes"):
        slicing_ops.sequence_slice_unpack(SRC, [1, 2], [3], 4)
    with pytest.raises(ValueError, match="inner shapes must match"):
        slicing_ops.sequence_slice(DST[..., :2], SRC, [1], [0], [0], False)
    with pytest.raises(ValueError, match="at least rank 2"):
        slicing_ops.sequence_slice_unpack(SRC[:, 0, 0], [1], [0], 4)
