"""Softmax and the losses against PyTorch."""

import numpy as np
import pytest

from ipuperf import ops
from ipuperf.ir import DTypeError, IrError, ShapeError
from ipuperf.ops.losses.softmax import probability_floor


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(bench, rng, axis):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((2, 3, 4, 5)) * 3
    bench.check(
        lambda g, t: g.create(ops.Softmax, [t], ["y"], axis=axis).outputs[0], lambda t: torch.softmax(t, axis), [x]
    )


def test_softmax_half_and_large(bench, rng):
    x = (rng.standard_normal((2, 6, 10)) * 30).astype(np.float16)
    found = bench.run(ops.Softmax, x)
    np.testing.assert_array_max_ulp(found, softmax(x.astype(np.float32)).astype(np.float16), maxulp=1)
    big = np.array([[1000.0, 1000.0, -1000.0]], np.float32)
    np.testing.assert_array_equal(bench.run(ops.Softmax, big), [[0.5, 0.5, 0]])


def loss_reference(torch, reduction, ignore, log_prob):
    def reference(probs, labels):
        logs = probs if log_prob else probs.log()
        flat = logs.reshape(-1, logs.shape[-1])
        options = {} if ignore is None else {"ignore_index": ignore}
        out = torch.nn.functional.nll_loss(flat, labels.reshape(-1).long(), reduction=reduction, **options)
        return out.reshape(labels.shape) if reduction == "none" else out

    return reference


@pytest.mark.parametrize("shape", [(8, 10), (2, 3, 7), (5,)])
@pytest.mark.parametrize("log_prob", [False, True])
@pytest.mark.parametrize("ignore", [None, 2, -1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll(bench, rng, reduction, ignore, log_prob, shape):
    torch = pytest.importorskip("torch")
    probs = softmax(rng.standard_normal((2, *shape)))
    labels = rng.integers(0, shape[-1], (2, *shape[:-1])).astype(np.int32)
    if ignore is not None:
        labels.reshape(-1)[0] = ignore
    if shape == (5,):
        labels[:] = 1  # a single label that counts
    bench.check(
        lambda g, p, y: g.create(
            ops.Nll, [p, y], ["l"], reduction=reduction, ignore_index=ignore, log_prob=log_prob
        ).outputs[0],
        loss_reference(torch, reduction, ignore, log_prob),
        [np.log(probs) if log_prob else probs, labels],
    )


@pytest.mark.parametrize("ignore", [None, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_loss_with_logit_gradient(bench, rng, reduction, ignore, dtype):
    torch = pytest.importorskip("torch")
    logits = rng.standard_normal((2, 4, 3, 6))
    probs = softmax(logits).astype(dtype)
    labels = rng.integers(0, 6, (2, 4, 3)).astype(np.uint32)
    labels[:, 0, 0] = 2
    per_label = reduction == "none"
    loss_grad = (rng.standard_normal((2, 4, 3)) if per_label else rng.standard_normal(2)).astype(np.float32)
    loss, found = bench.run(
        ops.NlllWithSoftmaxGradDirect, probs, labels, loss_grad, outputs=2, reduction=reduction, ignore_index=ignore
    )
    assert loss.dtype == found.dtype == dtype
    tolerance = {np.float16: 4e-3, np.float32: 1e-5, np.float64: 1e-6}[dtype]
    for r in range(2):
        leaf = torch.tensor(np.log(probs[r].astype(np.float64)), requires_grad=True)
        reference = loss_reference(torch, reduction, ignore, False)
        expected = reference(torch.softmax(leaf, -1), torch.tensor(labels[r].astype(np.int64)))
        expected.backward(torch.tensor(loss_grad[r].astype(np.float64)))
        np.testing.assert_allclose(loss[r], expected.detach().numpy(), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(found[r], leaf.grad.numpy(), rtol=tolerance, atol=tolerance)


def test_loss_gradient_of_one_element_for_unreduced_loss(bench, rng):
    probs = softmax(rng.standard_normal((2, 4, 6)))
    labels = rng.integers(0, 6, (2, 4)).astype(np.int32)
    one = np.full((2,), 3.0)
    _, found = bench.run(ops.NlllWithSoftmaxGradDirect, probs, labels, one, outputs=2, reduction="none")
    np.testing.assert_allclose(found, 3 * (probs - np.eye(6)[labels]), atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_labels_of_other_axes_than_the_rows(bench, rng, reduction):
    """Two sequences with three masked words each: logits (6, 5), labels (2, 3); BERT's pretraining head."""
    probs = softmax(rng.standard_normal((2, 6, 5)))
    labels = rng.integers(0, 5, (2, 2, 3)).astype(np.int32)
    loss, found = bench.run(
        ops.NlllWithSoftmaxGradDirect, probs, labels, np.ones((2,)), outputs=2, reduction=reduction, ignore_index=0
    )
    keep = labels != 0
    single = -np.log(np.take_along_axis(probs, labels.reshape(2, 6, 1), 2)).reshape(2, 2, 3) * keep
    wanted = (probs - np.eye(5)[labels.reshape(2, 6)]) * keep.reshape(2, 6, 1)
    if reduction == "mean":
        single, wanted = single.sum((1, 2)) / keep.sum((1, 2)), wanted / keep.sum((1, 2)).reshape(2, 1, 1)
    np.testing.assert_allclose(loss, single, atol=1e-12)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    with pytest.raises(ShapeError, match=r"labels have shape \(5,\); \(6,\) is needed for probs .*, or 6 labels in"):
        bench.op(ops.NlllWithSoftmaxGradDirect, probs, labels.reshape(2, 6)[:, :5], np.ones((2,)), outputs=2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_probability_zero_is_clamped(bench, dtype):
    probs, labels = np.array([[[0, 1]]], dtype), np.array([[0]], np.int32)
    floor = probability_floor(np.dtype(dtype))
    assert floor == np.finfo(dtype).tiny
    np.testing.assert_allclose(bench.run(ops.Nll, probs, labels), [-np.log(floor)], rtol=1e-3)
    grad = bench.run(ops.NllGrad, probs, labels, np.ones((1,), np.float32))
    np.testing.assert_allclose(grad, [[[-1 / floor, 0]]], rtol=1e-3)


@pytest.mark.parametrize("bad", [-1, 10])
def test_label_out_of_range(bench, bad):
    probs = np.full((1, 2, 10), 0.1, np.float32)
    with pytest.raises(ValueError, match=f"label {bad} is out of range; allowed: 0 to 9"):
        bench.run(ops.Nll, probs, np.array([[3, bad]], np.int32))


def test_gradient_through_softmax_and_loss(bench, rng):
    torch = pytest.importorskip("torch")
    labels = rng.integers(0, 6, (2, 4)).astype(np.int32)

    def build(g, t, y):
        probs = g.create(ops.Softmax, [t], ["p"], axis=-1).outputs[0]
        return g.create(ops.Nll, [probs, y], ["l"]).outputs[0]

    bench.check(
        build, lambda t, y: torch.nn.functional.cross_entropy(t, y.long()), [rng.standard_normal((2, 4, 6)), labels]
    )


def test_errors(bench):
    probs, labels = np.ones((1, 4, 6), np.float32), np.ones((1, 4), np.int32)
    with pytest.raises(ShapeError, match=r"labels have shape \(6,\); \(4,\) is needed"):
        bench.op(ops.Nll, probs, np.ones((1, 6), np.int32))
    with pytest.raises(DTypeError, match="integer type"):
        bench.op(ops.Nll, probs, labels.astype(np.float32))
    with pytest.raises(DTypeError, match="floating-point"):
        bench.op(ops.Nll, probs.astype(np.int32), labels)
    with pytest.raises(IrError, match="reduction='max'; allowed: mean, sum, none"):
        bench.op(ops.Nll, probs, labels, reduction="max")
    with pytest.raises(ShapeError, match="loss gradient has shape"):
        bench.op(ops.NlllWithSoftmaxGradDirect, probs, labels, np.ones((1, 4), np.float32), outputs=2)
    with pytest.raises(IrError, match="log_prob"):
        bench.op(ops.NlllWithSoftmaxGradDirect, probs, labels, np.ones((1,), np.float32), outputs=2, log_prob=True)
    with pytest.raises(ShapeError, match="axis 3 is out of range"):
        bench.op(ops.Softmax, probs, axis=3)
