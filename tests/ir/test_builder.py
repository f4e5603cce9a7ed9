"""The op maker: copies of ops."""

from ipuperf.ir import CONTEXT, FLOAT32, Builder, Ir, TensorSpec
from ipuperf.ops import ReduceSum


def test_a_copy_does_the_same_elsewhere() -> None:
    ir = Ir()
    main, other = ir.main_graph, ir.create_graph("other")
    x = main.add_input(TensorSpec((2, 3), FLOAT32), "x")
    with CONTEXT.scope("users"), CONTEXT.on_tiles("io"):
        op = Builder(main).create(ReduceSum, [x], ["sum"], axes=(1,), keepdims=True)
    copy = Builder(other).copy(op, [other.add_input(TensorSpec((4, 3), FLOAT32), "y")])
    assert copy.attributes == op.attributes
    assert (copy.type, copy.scope, copy.tile_set, copy.location) == (op.type, "users", "io", op.location)
    assert (copy.outputs[0].name, copy.outputs[0].shape) == ("users/sum", (4, 1))
    assert copy.graph is other
