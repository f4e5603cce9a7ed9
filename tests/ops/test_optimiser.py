"""Variable updates: values against float64 NumPy and PyTorch, in-place contracts, errors, cycle anchors."""

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.numerics import Evaluator
from ipuperf.ops import (
    Accumulate,
    AccumulatorScale,
    AccumulatorZero,
    AdamUpdater,
    CopyVarUpdate,
    ScaledAdd,
    ScaledAddLhsInplace,
    blocks,
    work,
)
from ipuperf.ops.transfers.streams import HostStore
from ipuperf.ops.updates.update_vertices import fused_cycles, scaled_add_cycles

RNG = np.random.default_rng(3)


class Chip:
    """The figures of a tile that the formulas use (Mk2)."""

    workers = 6

    @staticmethod
    def vector_width(size: int) -> int:
        return 8 // size


def apply(op_class, arrays, replicas=1, runs=1, **attributes):
    """Run one op on variables; returns its output and the variables afterwards. Arrays: (R, *shape) if replicas > 1."""
    program = ir.Ir(replicas)
    main, grouping = program.main_graph, program.grouping(1, 1)
    variables = []
    for i, array in enumerate(arrays):
        shape = array.shape[1:] if replicas > 1 else array.shape
        spec = ir.TensorSpec(shape, ir.dtype_of(array))
        variables.append(ir.Variable(f"v{i}", spec, main, array.copy(), grouping))
        main.add(variables[-1])
    op = main.create(op_class, variables, ["out"], **attributes)
    stream = ir.Stream("s", op.outputs[0].spec, main, "d2h")
    main.add(stream)
    main.create(HostStore, [op.outputs[0]], [], stream=stream)
    evaluator = Evaluator(program)
    evaluator.load_variables()
    for _ in range(runs):
        result = evaluator.run()[stream][0]
    after = [evaluator.variables[v] for v in variables]
    return (result if replicas > 1 else result[0]), (after if replicas > 1 else [a[0] for a in after])


def normal(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


TOLERANCE = {np.float16: 1e-3, np.float32: 1e-6}


@pytest.mark.parametrize("x_type", [np.float16, np.float32])
@pytest.mark.parametrize("y_type", [np.float16, np.float32])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (1.0, -1.0), (1.0, -0.3), (0.25, 1.0), (-2.0, 0.7)])
@pytest.mark.parametrize("op_class", [ScaledAdd, ScaledAddLhsInplace])
def test_scaled_add(op_class, x_type, y_type, a, b):
    x, y = normal(5, 7, dtype=x_type), normal(5, 7, dtype=y_type)
    out, (x_after, y_after) = apply(op_class, [x, y], a=a, b=b)
    expected = a * x.astype(np.float64) + b * y.astype(np.float64)
    assert out.dtype == x_type
    np.testing.assert_allclose(out, expected, rtol=TOLERANCE[x_type], atol=TOLERANCE[x_type])
    np.testing.assert_array_equal(x_after, out if op_class is ScaledAddLhsInplace else x)
    np.testing.assert_array_equal(y_after, y)


def test_scaled_add_rounds_once():
    """1 + 2**-11 + 2**-11: rounding the product or a first sum to fp16 would lose it."""
    x, y = np.ones(3, np.float16), np.full(3, 2**-10 * 1.5, np.float16)
    out, _ = apply(ScaledAdd, [x, y], a=1.0, b=0.5)
    np.testing.assert_array_equal(out, (np.float32(1) + np.float32(2**-11 * 1.5)).astype(np.float16))


def test_factors_from_tensors_per_replica():
    x, y = normal(3, 4, 5), normal(3, 4, 5)
    a, b = np.array([1.0, 2.0, -1.0], np.float32), np.array([[0.5], [0.0], [3.0]], np.float32)
    out, _ = apply(ScaledAddLhsInplace, [x, y, a, b], replicas=3, a_input=2, b_input=3)
    np.testing.assert_allclose(out, a[:, None, None] * x + b[:, :, None] * y, rtol=1e-6, atol=1e-6)


def test_operand_added_to_itself():
    x = normal(4)
    program = ir.Ir()
    v = ir.Variable("v", ir.TensorSpec((4,), ir.FLOAT32), program.main_graph, x.copy(), program.grouping())
    program.main_graph.add(v)
    program.main_graph.create(ScaledAddLhsInplace, [v, v], ["out"], a=0.5, b=2.0)
    evaluator = Evaluator(program)
    evaluator.load_variables()
    evaluator.run()
    np.testing.assert_allclose(evaluator.variables[v][0], 2.5 * x, rtol=1e-6)


def test_large_arrays_and_views_go_through_blocks():
    x, y = normal(300, 701), normal(300, 701)
    out, _ = apply(ScaledAddLhsInplace, [x, y], a=0.5, b=-0.1)
    np.testing.assert_allclose(out, 0.5 * x - 0.1 * y, rtol=1e-5, atol=1e-6)
    for shape, block in (((2, 7, 5), 10), ((2, 7, 5), 3), ((1, 40), 7), ((2, 1), 5), ((1, 0), 5)):
        a = np.arange(np.prod(shape)).reshape(shape)
        turned = np.ascontiguousarray(a.T).T
        for arrays in ([a, a.copy()], [turned, a]):
            for per_replica in (False, True):
                parts = blocks.pieces(arrays, per_replica, block)
                assert all(p.size <= block and p.shape == q.shape for _, (p, q) in parts)
                covered = [v for _, (p, q) in parts for v, w in zip(p.ravel(), q.ravel(), strict=True) if v == w]
                assert sorted(covered) == list(range(a.size))
                if per_replica:
                    assert all(np.isin(p, arrays[0][r]).all() for r, (p, _) in parts)


KINDS = {
    "add": lambda t, x, f: t + f * x,
    "square": lambda t, x, f: t + f * x * x,
    "mean": lambda t, x, f: t * f / (f + 1) + x / (f + 1),
    "moving_average": lambda t, x, f: f * t + (1 - f) * x,
    "moving_average_square": lambda t, x, f: f * t + (1 - f) * x * x,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("types", [(np.float32, np.float32), (np.float32, np.float16), (np.float16, np.float32)])
@pytest.mark.parametrize("tensor", [False, True])
def test_accumulate(kind, types, tensor):
    t, x = normal(6, 3, dtype=types[0]), normal(6, 3, dtype=types[1])
    inputs = [t, x, np.array(0.75, np.float32)] if tensor else [t, x]
    out, after = apply(Accumulate, inputs, kind=kind, factor=None if tensor else 0.75)
    expected = KINDS[kind](t.astype(np.float64), x.astype(np.float64), 0.75)
    np.testing.assert_allclose(out, expected, rtol=2 * TOLERANCE[types[0]], atol=TOLERANCE[types[0]])
    np.testing.assert_array_equal(after[0], out)


def test_running_mean_over_a_counter():
    values = [normal(4) for _ in range(5)]
    mean = np.zeros(4, np.float32)
    for count, value in enumerate(values):
        mean, _ = apply(Accumulate, [mean, value, np.array([count], np.float32)], kind="mean", factor=None)
    np.testing.assert_allclose(mean, np.mean(values, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_scale_and_zero(dtype):
    t = normal(3, 3, dtype=dtype)
    np.testing.assert_allclose(apply(AccumulatorScale, [t], factor=0.5)[1][0], 0.5 * t, rtol=1e-3)
    np.testing.assert_allclose(
        apply(AccumulatorScale, [t, np.array(-2, np.float32)], factor=None)[1][0], -2 * t, rtol=1e-3
    )
    broken = np.full(3, np.nan, dtype)
    np.testing.assert_array_equal(apply(AccumulatorZero, [broken])[1][0], 0)  # a fill, not a product
    assert AccumulatorZero.type == "AccumulatorScale"


@pytest.mark.parametrize("square", [False, True])
def test_moving_average_of_a_half_accumulator(square):
    """``X``, ``f`` and ``1 - f`` are halves; the sum is rounded once."""
    t, x = normal(5, 7, dtype=np.float16), normal(5, 7)
    kind = "moving_average_square" if square else "moving_average"
    found = apply(Accumulate, [t, x], kind=kind, factor=0.9)[1][0]
    half = x.astype(np.float16).astype(np.float64)
    keep, add = float(np.float16(0.9)), float(np.float16(1 - 0.9))
    wanted = keep * t.astype(np.float64) + add * (half**2 if square else half)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=2**-11 * 1.01)


def test_copy_var_update():
    t, x = normal(4), normal(4)
    out, after = apply(CopyVarUpdate, [t, x])
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(after[0], x)


# -- Adam ----------------------------------------------------------------------------------------------------------


def reference(m, v, w, step, mode, beta1, beta2, epsilon, decay):
    """In float64; a half moment is corrected in half."""
    if step is not None:
        correction = 1 - beta1**step
        m = m / np.float16(correction) if m.dtype == np.float16 else m.astype(np.float64) / correction
    m, v = m.astype(np.float64), v.astype(np.float64)
    if step is not None:
        v = v if mode == "adamax" else v / (1 - beta2**step)
    out = m / ((v if mode == "adamax" else np.sqrt(v)) + epsilon)
    return out if w is None else out + decay * w


@pytest.mark.parametrize("mode", ["adam", "adamax", "lamb"])
@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("moment", [np.float16, np.float32])
def test_adam_updater(mode, step, weight, moment):
    m, v, w = normal(5, 3, dtype=moment), np.abs(normal(5, 3)) + np.float32(0.1), normal(5, 3)
    inputs = [m, v, *([w] if weight else []), *([np.array(2, np.float32)] if step else [])]
    decay = 0.1 if weight else 0.0
    out, after = apply(
        AdamUpdater, inputs, runs=2, mode=mode, beta1=0.9, beta2=0.99, epsilon=1e-6, weight_decay=decay,
        has_weight=weight, has_step=step,
    )  # fmt: skip
    expected = reference(m, v, w if weight else None, 4 if step else None, mode, 0.9, 0.99, 1e-6, decay)
    assert out.dtype == (np.float32 if weight else moment)
    np.testing.assert_allclose(out, expected, rtol=2e-3 if out.dtype == np.float16 else 2e-5)
    if step:
        assert after[-1] == 4  # incremented in place by each of the two runs


def test_adam_with_factors_from_tensors_and_integer_step():
    m, v, w = normal(4), np.abs(normal(4)), normal(4)
    scalars = [np.array(x, np.float32) for x in (0.8, 0.9, 0.05)]
    out, after = apply(
        AdamUpdater, [m, v, w, np.array([0], np.uint32), *scalars], mode="adam", epsilon=1e-5, has_weight=True,
        has_step=True, beta1_input=4, beta2_input=5, weight_decay_input=6,
    )  # fmt: skip
    np.testing.assert_allclose(out, reference(m, v, w, 1, "adam", 0.8, 0.9, 1e-5, 0.05), rtol=1e-5)
    assert after[3] == 1


def test_per_replica_steps():
    m, v, steps = normal(2, 3), np.abs(normal(2, 3)), np.array([0, 7], np.float32)
    out, _ = apply(
        AdamUpdater, [m, v, steps], replicas=2, beta1=0.9, beta2=0.99, epsilon=0.0, weight_decay=0.0, has_step=True
    )
    for r, step in enumerate((1, 8)):
        np.testing.assert_allclose(out[r], reference(m[r], v[r], None, step, "adam", 0.9, 0.99, 0.0, 0.0), rtol=1e-5)


def test_adamw_against_torch():
    torch = pytest.importorskip("torch")
    start, rate, decay = normal(4, 3), 0.01, 0.1
    parameter = torch.nn.Parameter(torch.tensor(start))
    optimiser = torch.optim.AdamW([parameter], lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=decay)
    w, m, v, step = start, np.zeros_like(start), np.zeros_like(start), np.zeros((), np.float32)
    for _ in range(5):
        g = normal(4, 3)
        parameter.grad = torch.tensor(g)
        optimiser.step()
        m, _ = apply(Accumulate, [m, g], kind="moving_average", factor=0.9)
        v, _ = apply(Accumulate, [v, g], kind="moving_average_square", factor=0.999)
        updater, after = apply(
            AdamUpdater, [m, v, w, step], mode="adam", beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=decay,
            has_weight=True, has_step=True,
        )  # fmt: skip
        step = after[3]
        w, _ = apply(ScaledAddLhsInplace, [w, updater], a=1.0, b=-rate)
    np.testing.assert_allclose(w, parameter.detach().numpy(), rtol=1e-5, atol=1e-6)


# -- errors --------------------------------------------------------------------------------------------------------


def test_errors():
    x, y = normal(3), normal(4)
    whole = np.zeros(3, np.int32)
    for error, message, op_class, arrays, attributes in (
        (ir.ShapeError, r"'v0' \(3,\) and 'v1' \(4,\)", ScaledAdd, [x, y], {}),
        (ir.DTypeError, "'v1' is int32", ScaledAdd, [x, whole], {}),
        (ir.ShapeError, r"factor b \('v2'\) has shape \(4,\)", ScaledAdd, [x, x, y], {"b_input": 2}),
        (ir.IrError, "kind='sum'; allowed: add, square", Accumulate, [x, x], {"kind": "sum"}),
        (ir.IrError, "needs a factor", Accumulate, [x, x], {"kind": "mean"}),
        (ir.IrError, "needs beta2", AdamUpdater, [x, x, y[:1]], {"has_step": True, "beta1": 0.9}),
        (ir.IrError, "needs the weight", AdamUpdater, [x, x], {"weight_decay": 0.1}),
        (ir.IrError, "mode='sgd'; allowed: adam, adamax, lamb", AdamUpdater, [x, x], {"mode": "sgd"}),
        (ir.ShapeError, "time_step", AdamUpdater, [x, x, y], {"has_step": True, "beta1": 0.9, "beta2": 0.9}),
        (ir.DTypeError, "different dtypes", CopyVarUpdate, [x, whole], {}),
    ):
        with pytest.raises(error, match=message):
            apply(op_class, arrays, **attributes)


# -- cost ----------------------------------------------------------------------------------------------------------

SIZES = np.array([64, 384, 1000, 4096])


def test_scaled_add_anchors():
    """docs/reference/cycles.md 8.1: ScaledAdd f16 memC=0, A f16 B f32, aX+bY f16 (factors in tensors)."""
    half, single = ir.FLOAT16, ir.FLOAT32
    np.testing.assert_array_equal(scaled_add_cycles(half, half, True)(SIZES, Chip), [225, 477, 927, 3249])
    np.testing.assert_array_equal(scaled_add_cycles(half, single, True)(SIZES, Chip), [285, 681, 1455, 5325])
    np.testing.assert_array_equal(scaled_add_cycles(half, half, True, True)(SIZES, Chip), [237, 489, 939, 3261])


def test_cycles_grow_and_start_at_zero():
    sizes = np.arange(0, 500)
    for a in (ir.FLOAT16, ir.FLOAT32):
        for b in (ir.FLOAT16, ir.FLOAT32):
            cycles = scaled_add_cycles(a, b, False)(sizes, Chip)
            assert cycles[0] == 0
            assert (cycles[1:] > 0).all()
            whole = cycles[8::24]
            assert (np.diff(whole) >= 0).all()
    # 2 tensors of 10 half elements: 2 vectors + 2 elements each, 3 operations; 20 + 3 * (2 * 4 + 1) = 47 -> 48
    assert fused_cycles(ir.FLOAT16, 2, 1, 3)(np.array([10]), Chip)[0] == 48


def works(op_class, arrays, **attributes):
    program = ir.Ir()
    tensors = [program.main_graph.add_input(ir.TensorSpec(a.shape, ir.dtype_of(a)), "t") for a in arrays]
    return program.main_graph.create(op_class, tensors, ["out"], **attributes).work()


def test_work():
    x, s = np.zeros((10, 10), np.float32), np.zeros((), np.float32)
    (add,) = works(ScaledAddLhsInplace, [x, x], a=1.0, b=-0.1)
    assert (add.vertex, add.elements, add.flops) == ("popops::ScaledAddSupervisor<float,float,true>", 100, 200)
    copy, both = works(ScaledAdd, [x, x, s, s], a_input=2, b_input=3)
    assert copy == work.Copy(400)
    assert both.vertex == "popops::aXPlusbYSupervisor<float,float,false>"
    assert "Fill" in works(AccumulatorZero, [x])[0].vertex
    assert "BroadcastScalar1DInPlace<MULTIPLY" in works(AccumulatorScale, [x], factor=0.5)[0].vertex
    assert works(CopyVarUpdate, [x, x]) == [work.Copy(400)]
    for kind in KINDS:
        (one,) = works(Accumulate, [x, x], kind=kind, factor=0.5)
        assert one.elements == 100
    step, adam = works(
        AdamUpdater, [x, x, x, s], beta1=0.9, beta2=0.9, epsilon=1e-8, weight_decay=0.1, has_weight=True, has_step=True
    )
    assert step.elements == 1
    assert adam.flops == 11 * 100  # 2 (divide, epsilon) + 3 + 3 (corrections) + 1 (root) + 2 (decay)


def test_shapes_that_differ_are_named_in_the_order_of_the_operands():
    graph = ir.Ir().create_graph("g")
    target, value = (graph.add_input(ir.TensorSpec(shape, ir.FLOAT32), n) for n, shape in (("t", (2,)), ("x", (3,))))
    with pytest.raises(ValueError, match=r"t' \(2,\) and '.*x' \(3,\) must have equal shapes"):
        graph.create(CopyVarUpdate, [target, value], ["u"])


def test_integers_are_not_scaled():
    graph = ir.Ir().create_graph("g")
    whole = graph.add_input(ir.TensorSpec((2,), ir.INT32), "t")
    with pytest.raises(ir.DTypeError):
        graph.create(AccumulatorScale, [whole], ["u"], factor=2.0)
