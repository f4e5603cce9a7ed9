"""Remote loads and stores: rules, entry checks at build time, work. Values are tested with the evaluator."""

import numpy as np
import pytest

from ipuperf import ir
from ipuperf.numerics import Evaluator
from ipuperf.ops.elementwise.arithmetic import Add
from ipuperf.ops.shape import Init
from ipuperf.ops.transfers.remote import RemoteEntryError, RemoteLoad, RemoteLoadInplace, RemoteStore
from ipuperf.ops.transfers.streams import HostStore
from ipuperf.ops.work import RemoteAccess


@pytest.fixture
def program():
    return ir.Ir(2)


def init(graph, shape=(3,), dtype=ir.FLOAT32):
    return graph.create(Init, [], ["init"], shape=shape, dtype=dtype, init="zero").outputs[0]


def test_load_and_store(program):
    main = program.main_graph
    buffer = program.remote_buffer((3,), ir.FLOAT32, 2, meta_shape=(2, 3))
    entry = main.constant(1, ir.INT32)
    load = main.create(RemoteLoad, [init(main), entry], ["x"], buffer=buffer)
    assert load.aliases() == {0: 0}
    assert load.modified_inputs() == ()
    assert load.outputs[0].spec == ir.TensorSpec((3,), ir.FLOAT32, (2, 3))
    assert load.work() == [RemoteAccess(buffer, "load", 12)]
    store = main.create(RemoteStore, [load.outputs[0], entry], [], buffer=buffer)
    assert store.outputs == []
    assert store.work() == [RemoteAccess(buffer, "store", 12)]
    again = main.create(RemoteLoadInplace, [load.outputs[0], entry], ["x"], buffer=buffer)
    assert again.modified_inputs() == (0,)


@pytest.mark.parametrize("entry", [-1, 2, 100])
def test_constant_entry_is_checked_at_build_time(program, entry):
    main, buffer = program.main_graph, program.remote_buffer((3,), ir.FLOAT32, 2)
    offset = main.constant([entry], ir.INT32)
    message = rf"entry {entry} of RemoteBuffer\(1, \(3,\) float32 x 2\); allowed are 0 to 1 \(2 entries\)"
    with pytest.raises(RemoteEntryError, match=message):
        main.create(RemoteLoad, [init(main), offset], ["x"], buffer=buffer)
    with pytest.raises(IndexError):
        main.create(RemoteStore, [init(main), offset], [], buffer=buffer)
    assert issubclass(RemoteEntryError, ir.IrError)


def test_load_in_place_replaces_a_tensor_in_use(program):
    """A load into a tensor in use changes it; a plain load of the same shape elsewhere does not."""
    main, buffer = program.main_graph, program.remote_buffer((3,), ir.FLOAT32, 1)
    w = ir.Variable("w", ir.TensorSpec((3,), ir.FLOAT32), main, np.ones(3, np.float32), program.grouping())
    out = ir.Stream("out", w.spec, main, "d2h")
    main.add(w)
    main.add(out)
    with ir.CONTEXT.sequence(True):
        before = main.create(Add, [w, w], ["t"]).outputs[0]
        loaded = main.create(RemoteLoadInplace, [w, main.constant(0, ir.INT32)], ["x"], buffer=buffer).outputs[0]
        total = main.create(Add, [before, loaded], ["t"]).outputs[0]
        main.create(HostStore, [total], [], stream=out)
    evaluator = Evaluator(program)
    evaluator.load_variables()
    evaluator.remote[buffer][:, 0] = [[5, 6, 7], [50, 60, 70]]
    np.testing.assert_array_equal(evaluator.run()[out][0], [[7, 8, 9], [52, 62, 72]])
    np.testing.assert_array_equal(evaluator.variables[w], [[5, 6, 7], [50, 60, 70]])
