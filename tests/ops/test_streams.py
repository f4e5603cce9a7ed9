"""Host loads and stores: rules, errors, work. Their order in runs is tested with the evaluator."""

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.numerics import Evaluator
from ipuperf.ops.elementwise.arithmetic import Add
from ipuperf.ops.shape import Init
from ipuperf.ops.transfers.streams import HostLoad, HostStore
from ipuperf.ops.work import HostTransfer


def stream_of(program, direction, shape=(2, 3), dtype=ir.FLOAT16):
    stream = ir.Stream("s", ir.TensorSpec(shape, dtype), program.main_graph, direction)
    program.main_graph.add(stream)
    return stream


def init(graph, shape=(2, 3), dtype=ir.FLOAT16):
    return graph.create(Init, [], ["init"], shape=shape, dtype=dtype, init="zero").outputs[0]


def test_load_shares_the_inited_tensor_and_costs_a_transfer():
    program = ir.Ir()
    stream = stream_of(program, "h2d")
    op = program.main_graph.create(HostLoad, [init(program.main_graph)], ["x"], stream=stream)
    assert op.aliases() == {0: 0}
    assert op.outputs[0].spec == ir.TensorSpec((2, 3), ir.FLOAT16)
    assert op.work() == [HostTransfer(stream.id, "h2d", 12)]


def test_store_has_no_outputs():
    program = ir.Ir()
    stream = stream_of(program, "d2h")
    op = program.main_graph.create(HostStore, [init(program.main_graph)], [], stream=stream)
    assert op.outputs == []
    assert op.work() == [HostTransfer(stream.id, "d2h", 12)]


def test_errors():
    program = ir.Ir()
    main, stream = program.main_graph, stream_of(program, "h2d")
    with pytest.raises(ir.IrError, match="cannot store to stream 's', its direction is 'h2d'"):
        main.create(HostStore, [init(main)], [], stream=stream)
    with pytest.raises(ir.ShapeError, match=r"stream 's' has shape \(2, 3\), 'init.*' has \(3, 2\)"):
        main.create(HostLoad, [init(main, (3, 2))], ["x"], stream=stream)
    with pytest.raises(ir.DTypeError, match=r"has type float16, 'init.*' has float32"):
        main.create(HostLoad, [init(main, dtype=ir.FLOAT32)], ["x"], stream=stream)


def test_two_loads_into_one_inited_tensor_stay_apart():
    program = ir.Ir()
    main, stream = program.main_graph, stream_of(program, "h2d", (), ir.FLOAT32)
    out = ir.Stream("out", stream.spec, main, "d2h")
    main.add(out)
    with ir.CONTEXT.sequence(True):
        shared = init(main, (), ir.FLOAT32)
        first, second = (main.create(HostLoad, [shared], ["x"], stream=stream).outputs[0] for _ in range(2))
        total = main.create(Add, [first, second], ["total"]).outputs[0]
        main.create(HostStore, [total], [], stream=out)
    result = Evaluator(program).run({stream: np.array([[1], [10]], np.float32)})
    assert result[out].item() == 11
