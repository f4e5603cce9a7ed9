"""Recurrent layers of PopNN as one op of a program, against the same steps written out in TensorFlow."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_keras")

from graphcases import Program  # noqa: E402
from kerasruns import ipus, same  # noqa: E402
from sessions import Compiled, configure, graphs, missing  # noqa: E402
from tensorflow import keras  # noqa: E402

from ipuperf.runtime.effects import WithoutEffectWarning  # noqa: E402
from ipuperf.tensorflow.addons.v1 import layers as addons  # noqa: E402
from ipuperf.tensorflow.keras import layers  # noqa: E402
from ipuperf.tensorflow.python import ipu  # noqa: E402

RNG = np.random.default_rng(5)
UNITS, INPUTS = 5, 3


def data(*shape):
    return RNG.normal(size=shape).astype("float32")


def steps(layer, x, lengths=None, scores=None, cell="lstm", after=False):
    """Results and last states of a layer, step by step, by TensorFlow alone; ``x [time, batch, inputs]``."""
    weights = [tf.convert_to_tensor(w) for w in layer.trainable_variables]
    if hasattr(layer, "recurrent_kernel"):
        own, kernel, bias = weights
    else:
        own, kernel = weights[0][: x.shape[2]], weights[0][x.shape[2] :]
        bias = weights[1] if len(weights) == 2 else tf.concat(weights[1:], 0)
        if after:
            bias = tf.stack([bias, bias]) if len(weights) > 2 else tf.transpose(bias, [1, 0, 2])
            bias = tf.reshape(bias, [2, -1])
        else:
            bias = tf.reshape(bias, [-1])
    first, other = (bias[0], bias[1]) if after else (bias, tf.zeros_like(bias))
    act, gate = tf.tanh, tf.sigmoid
    units = kernel.shape[0]
    h = c = tf.zeros([x.shape[1], units], x.dtype)
    rows = []
    for t in range(x.shape[0]):
        sums, more = x[t] @ own + first, h @ kernel + other
        if cell == "lstm":
            i, f, g, o = tf.split(sums + more, 4, 1)
            new_c = gate(f) * c + gate(i) * act(g)
            new = gate(o) * act(new_c)
        else:
            (a, b, n), (d, e, m) = tf.split(sums, 3, 1), tf.split(more, 3, 1)
            z, r = gate(a + d), gate(b + e)
            n = act(n + r * m) if after else act(n + (r * h) @ kernel[:, 2 * units :])
            z = z if scores is None else z * (1 - scores[:, t : t + 1])
            new, new_c = z * h + (1 - z) * n, c
        inside = tf.ones([x.shape[1], 1]) > 0 if lengths is None else (t < lengths)[:, None]
        rows.append(tf.where(inside, new, tf.zeros_like(new)))
        h, c = tf.where(inside, new, h), tf.where(inside, new_c, c)
    return tf.stack(rows), [h, c] if cell == "lstm" else [h]


def with_gradients(function, variables, *watched):
    """Its results and gradients of them all."""

    def whole(*arguments):
        taken = [a for a, is_watched in zip(arguments, watched) if is_watched]
        with tf.GradientTape() as tape:
            tape.watch(taken)
            found = tf.nest.flatten(function(*arguments))
            loss = tf.add_n([tf.reduce_sum(tf.sin(t) * (n + 1)) for n, t in enumerate(found)])
        return [*found, *tape.gradient(loss, [*taken, *variables])]

    return whole


def compared(layer, ours, theirs, *arguments, watched=(True,), rtol=1e-5, atol=2e-6):
    """A program's results and gradients equal TensorFlow's of the steps; it has one op forwards, one backwards."""
    variables = layer.trainable_variables
    program = Program(tf.function(with_gradients(ours, variables, *watched)), arguments)
    expected = with_gradients(theirs, variables, *watched)(*(tf.constant(a) for a in arguments))
    for one, other in zip(program.run(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)
    kinds = [op.type for graph in program.ir.all_graphs() for op in graph.ops]
    assert (kinds.count("Recurrent"), kinds.count("RecurrentGrad"), kinds.count("Loop")) == (1, 1, 0)
    return program


SIZES = [(7, 3), (1, 3), (4, 1), (1, 1)]


@pytest.mark.parametrize(("time", "batch"), SIZES)
@pytest.mark.parametrize("kind", ["lstm", "gru", "gru after"])
def test_keras_layers(kind, time, batch):
    options = {"return_sequences": True, "return_state": True, "bias_initializer": "uniform"}
    after = kind == "gru after"
    if kind == "lstm":
        layer, how = layers.LSTM(UNITS, **options, unit_forget_bias=False), {}
    else:
        layer = layers.GRU(UNITS, **options, reset_after=after)
        how = {"cell": "gru", "after": after}
    x = data(batch, time, INPUTS)
    layer(x)

    def theirs(x):
        rows, states = steps(layer, tf.transpose(x, [1, 0, 2]), **how)
        return [tf.transpose(rows, [1, 0, 2]), *states]

    compared(layer, layer, theirs, x)


@pytest.mark.parametrize(("time", "batch"), SIZES[:2])
@pytest.mark.parametrize("kind", ["lstm", "gru", "gru after", "augru", "augru after"])
def test_sequences_of_several_lengths(kind, time, batch):
    after = kind.endswith("after")
    x, scores = data(time, batch, INPUTS), RNG.random((batch, time)).astype("float32")
    lengths = np.array([time, 0, (time + 1) // 2], np.int32)[:batch]
    if kind == "lstm":
        layer = ipu.rnn_ops.PopnnDynamicLSTM(UNITS, seed=1)
        ours, theirs = lambda x, _: layer(x, lengths), lambda x, _: steps(layer, x, lengths)
        flat = lambda found: [found[0], found[1].h, found[1].c]  # noqa: E731
    else:
        kinds = {"gru": ipu.rnn_ops.PopnnDynamicGRU, "augru": ipu.rnn_ops.PopnnAUGRU}
        layer = kinds[kind.split()[0]](UNITS, seed=1, reset_after=after)
        scored = kind.startswith("augru")

        def ours(x, s):
            return layer(x, lengths, s) if scored else layer(x, lengths)

        def theirs(x, s):
            return steps(layer, x, lengths, s if scored else None, "gru", after=after)

        flat = lambda found: found  # noqa: E731
    ours(x, scores)
    unused = [v for v in layer.trainable_variables if kind != "lstm" and v.name.endswith("biases:0")]
    layer._trainable_weights = [v for v in layer._trainable_weights if all(v is not other for other in unused)]
    watched = (True, kind.startswith("augru"))
    compared(layer, lambda *a: flat(ours(*a)), theirs, x, scores, watched=watched)


@pytest.mark.parametrize("after", [False, True])
def test_the_dynamic_gru_of_the_addons_has_the_biases_of_a_gru(after):
    start = tf.compat.v1.random_uniform_initializer(seed=3)
    layer = addons.PopnnDynamicGRU(UNITS, seed=1, reset_after=after, bias_initializer=start)
    x, lengths = data(4, 3, INPUTS), np.array([4, 1, 3], np.int32)
    layer(x, lengths)

    def theirs(x):
        return steps(layer, x, lengths, cell="gru", after=after)

    compared(layer, lambda x: layer(x, lengths), theirs, x)


def test_half_precision():
    layer = ipu.rnn_ops.PopnnLSTM(UNITS, dtype=tf.float16, seed=1)
    x = data(4, 3, INPUTS).astype(np.float16)
    layer(x)

    def ours(x):
        rows, state = layer(x)
        return [rows, state.h, state.c]

    compared(layer, ours, lambda x: steps(layer, x), x, rtol=2e-2, atol=2e-2)


def test_gradients_that_nobody_needs_are_not_there():
    """Of the last result alone: no sequence of gradients; of the results alone: none of the states."""
    x = data(3, 6, INPUTS)
    for sequences, wanted in ((False, (False, True)), (True, (True, False))):
        layer = layers.LSTM(UNITS, return_sequences=sequences)
        layer(x)
        program = Program(tf.function(with_gradients(layer, layer.trainable_variables, True)), [x])
        (back,) = (op for op in program.ir.main_graph.ops if op.type == "RecurrentGrad")
        assert (back.of_results, back.of_last) == wanted
        assert not back.of_cell


def test_without_training_nothing_is_kept_and_there_are_no_gradients():
    layer, x = ipu.rnn_ops.PopnnGRU(UNITS), data(4, 2, INPUTS)
    layer(x)
    for training, results in ((False, 2), (True, 3)):
        program = Program(tf.function(lambda x, training=training: layer(x, training=training)), [x])
        (op,) = (op for op in program.ir.main_graph.ops if op.type == "Recurrent")
        assert (len(op.outputs), op.trains) == (results, training)
    with tf.GradientTape() as tape:
        found = layer(x, training=False)[0]
    with pytest.raises(ValueError, match="To use PopnnGRULayer in gradients, is_training must be set to True"):
        tape.gradient(found, layer.trainable_variables)
    keras_layer = layers.LSTM(UNITS)
    for training, trains in ((None, True), (True, True), (False, False)):
        program = Program(tf.function(lambda x, training=training: keras_layer(x, training=training)), [x])
        (op,) = (op for op in program.ir.main_graph.ops if op.type == "Recurrent")
        assert op.trains is trains


def test_arguments_of_the_newest_layers():
    x, lengths = data(4, 2, INPUTS), np.array([4, 2], np.int32)
    layer = ipu.rnn_ops.PopnnDynamicGRU(UNITS, return_state=False)
    rows = layer(x, lengths)
    assert rows.shape == (4, 2, UNITS)
    same(layer(x.transpose(1, 0, 2), lengths, time_major=False), rows)
    assert ipu.rnn_ops.PopnnLSTM(UNITS, return_state=False)(x).shape == (4, 2, UNITS)
    augru, scores = ipu.rnn_ops.PopnnAUGRU(UNITS), RNG.random((2, 4)).astype("float32")
    expected = augru(x, lengths, scores)
    same(augru(x, lengths, scores.T), expected)
    same(augru(x.transpose(1, 0, 2), lengths, scores, time_major=False), expected)
    square, scores = x[:2], scores[:, :2]
    found = augru(square, lengths, scores.T)
    same(augru(square.transpose(1, 0, 2), lengths, scores, time_major=False), found)


def products(layer, x):
    """Types and shares of memory of the forward and the backward pass."""
    layer(x)

    def first(x):
        found = layer(x)
        return found[0] if isinstance(found, tuple) else found

    program = Program(tf.function(with_gradients(first, layer.trainable_variables, True)), [x])
    ops = {op.type: op for op in program.ir.main_graph.ops}
    made = [ops[name].work()[0].products[0] for name in ("Recurrent", "RecurrentGrad")]
    return [(p.partials_dtype.name, p.available_memory_proportion) for p in made]


def test_options_of_plans():
    x = data(4, 2, INPUTS)
    assert products(layers.LSTM(UNITS), x) == [("float32", 0.6)] * 2
    shares = {"available_memory_proportion_fwd": 0.2, "partials_dtype": tf.float16}
    assert products(layers.GRU(UNITS, **shares), x) == [("float16", 0.2)] * 2
    shares["available_memory_proportion_bwd"] = -1.0
    assert products(ipu.rnn_ops.PopnnLSTM(UNITS, **shares), x) == [("float16", 0.2), ("float16", 0.6)]
    options = {"options": {"availableMemoryProportion": 0.3}, "options_bwd": {"partialsType": "half"}}
    found = products(ipu.rnn_ops.PopnnGRU(UNITS, available_memory_proportion_fwd=0.2, **options), x)
    assert found == [("float32", 0.3), ("float16", 0.2)]
    with pytest.warns(WithoutEffectWarning, match="plans take availableMemoryProportion and partialsType"):
        layers.LSTM(UNITS, options={"recomputationMode": "cellAndTanh"})
    with pytest.raises(ValueError, match="partials_dtype .* allowed: float16, float32"):
        layers.LSTM(UNITS, partials_dtype=tf.int32)
    with pytest.raises(ValueError, match="partialsType 'int'; allowed: half, float"):
        layers.LSTM(UNITS, options={"partialsType": "int"})


def test_the_configuration_of_products_is_theirs():
    with graphs():
        configure(matmuls__poplar_options={"availableMemoryProportion": "0.4"})

        def net(x):
            rows, _ = ipu.rnn_ops.PopnnLSTM(UNITS, options={"availableMemoryProportion": 0.1})(x)
            loss = tf.reduce_sum(rows**2)
            return loss, tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            run = Compiled(lambda x: net(x), [data(4, 2, INPUTS)])
        run()
        ops = {op.type: op for graph in run.program.ir.all_graphs() for op in graph.ops}
        shares = [ops[name].available_memory_proportion for name in ("Recurrent", "RecurrentGrad")]
        assert shares == [0.1, 0.4]


def recurrent(own):
    """A model of Keras' layers, or of the IPU's ``own``."""
    kinds = layers if own else keras.layers

    def made():
        return keras.Sequential(
            [
                keras.Input((6, INPUTS)),
                kinds.GRU(4, return_sequences=True, name="a"),
                kinds.LSTM(3, activation="relu", recurrent_activation="hard_sigmoid", name="b"),
                keras.layers.Dense(2, name="c"),
            ]
        )

    return made


@pytest.mark.heavy
def test_fit_on_replicas():
    replicas, x, y = 2, data(16, 6, INPUTS), data(16, 2)

    def compiled(model, **options):
        model.compile(keras.optimizers.SGD(0.05), "mse", **options)

    tf.keras.utils.set_random_seed(1)
    cpu = recurrent(False)()
    # replicas add up their gradients
    cpu.compile(keras.optimizers.SGD(0.05), lambda y, p: replicas * tf.reduce_mean((y - p) ** 2, -1), run_eagerly=True)
    with ipus(replicas):
        model = recurrent(True)()
        model.set_weights(cpu.get_weights())
        compiled(model, steps_per_execution=4 // replicas)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        found = model.predict(x, batch_size=4, verbose=0)
    cpu.fit(x, y, batch_size=4 * replicas, shuffle=False, verbose=0)
    same(model.get_weights(), cpu.get_weights())
    same(found, cpu.predict(x, batch_size=16, verbose=0))


@pytest.mark.heavy
def test_states_that_stay():
    x = data(2, 6, INPUTS)

    def made(kinds):
        return keras.Sequential([keras.Input(batch_shape=(2, 3, INPUTS)), kinds.LSTM(4, stateful=True)])

    cpu = made(keras.layers)
    with ipus(1):
        model = made(layers)
        model.set_weights([*cpu.get_weights()[:3], *model.get_weights()[3:]])
        for part in (x[:, :3], x[:, 3:]):
            same(model.predict(part, batch_size=2, verbose=0), cpu.predict(part, batch_size=2, verbose=0))


@pytest.mark.heavy
def test_stages_of_pipelines():
    """Stages are differentiated by themselves, and so is the op."""
    x, y = data(8, 6, INPUTS), data(8, 2)
    kinds = keras.layers
    cpu = keras.Sequential([kinds.GRU(4, return_sequences=True), kinds.LSTM(3), kinds.Dense(2)])
    cpu.build((None, 6, INPUTS))
    first = cpu.get_weights()
    cpu.compile(keras.optimizers.SGD(0.1), lambda y, p: 4 * tf.reduce_mean((y - p) ** 2, -1), run_eagerly=True)
    cpu.fit(x, y, batch_size=8, verbose=0)
    with ipus(2):
        own = [layers.GRU(4, return_sequences=True, input_shape=(6, INPUTS)), layers.LSTM(3)]
        model = keras.Sequential([*own, kinds.Dense(2)])
        model.set_pipeline_stage_assignment([0, 1, 1])
        model.set_weights(first)
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=4)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
        same(model.get_weights(), cpu.get_weights())


@pytest.mark.heavy
def test_mixed_precision():
    x, y = data(4, 6, INPUTS), data(4, 2)
    cpu = recurrent(False)()
    expected = cpu.predict(x, verbose=0)
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with ipus(1):
            model = recurrent(True)()
            model.set_weights(cpu.get_weights())
            model.compile(keras.optimizers.SGD(0.05), "mse")
            np.testing.assert_allclose(model.predict(x, batch_size=4, verbose=0), expected, rtol=1e-2, atol=1e-2)
            losses = [model.fit(x, y, batch_size=4, verbose=0).history["loss"][0] for _ in range(2)]
            assert losses[1] < losses[0]
            assert {w.dtype for w in model.weights} == {tf.float32}
    finally:
        keras.mixed_precision.set_global_policy("float32")


@pytest.mark.heavy
def test_inside_of_loops():
    """The op in a loop of TensorFlow, and its gradient in that of the loop."""
    layer, x = ipu.rnn_ops.PopnnGRU(INPUTS, reset_after=True, seed=1), data(3, 2, INPUTS)
    layer(x)

    def looped(call):
        return lambda x: tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, call(x)), (0, x), maximum_iterations=3)[
            1
        ]

    variables = layer.trainable_variables
    program = Program(tf.function(with_gradients(looped(lambda x: layer(x)[0]), variables, True)), [x])
    expected = with_gradients(looped(lambda x: steps(layer, x, cell="gru", after=True)[0]), variables, True)(
        tf.constant(x)
    )
    for one, other in zip(program.run(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


@pytest.mark.heavy
@pytest.mark.parametrize("recompute", [False, True])
def test_pipelines_of_version_1(recompute):
    """Losses of accumulated steps equal TensorFlow's; the options of a stage are those of its layers' products."""
    tf1, ops = tf.compat.v1, ipu.pipelining_ops
    batches = data(8, 5, 2, INPUTS)

    def first(x):
        return ipu.rnn_ops.PopnnLSTM(UNITS, seed=1, name="a")(x)[0]

    def second(x):
        rows, state = ipu.rnn_ops.PopnnGRU(4, seed=2, name="b", reset_after=True)(x)
        return tf.reduce_sum(rows**2) + tf.reduce_sum(tf.sin(state))

    def optimiser(loss):
        return ops.OptimizerFunctionOutput(tf1.train.GradientDescentOptimizer(0.05), loss)

    with graphs() as made:
        configure(auto_select_ipus=2, allow_recompute=recompute)
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(batches))
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def net():
            return ops.pipeline(
                [first, second],
                gradient_accumulation_count=4,
                repeat_count=2,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=optimiser,
                reduction_method="sum",
                forward_propagation_stages_poplar_options=[
                    ops.PipelineStageOptions(matmul_options={"availableMemoryProportion": share})
                    for share in (0.3, 0.4)
                ],
            )

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            run = Compiled(net, [], [infeed])
        run()
        losses = made.session.run(outfeed.dequeue())
        found = [op for graph in run.program.ir.all_graphs() for op in graph.ops if op.type == "Recurrent"]
        assert {op.available_memory_proportion for op in found} == {0.3, 0.4}
        made.fresh()
        tf1.enable_resource_variables()
        lstm, gru = ipu.rnn_ops.PopnnLSTM(UNITS, seed=1, name="a"), ipu.rnn_ops.PopnnGRU(4, seed=2, reset_after=True)
        lstm.build((5, 2, INPUTS))
        gru.build((5, 2, UNITS))
        weights = [*lstm.trainable_variables, *gru.trainable_variables]
        holder = tf1.placeholder(tf.float32, batches.shape[1:])
        rows = steps(lstm, holder)[0]
        after, (state,) = steps(gru, rows, cell="gru", after=True)
        loss = tf.reduce_sum(after**2) + tf.reduce_sum(tf.sin(state))
        gradients = tf1.gradients(loss, weights)
        made.session.run(tf1.variables_initializer(weights))
        wanted = []
        for start in (0, 4):
            every = [made.session.run([loss, gradients], {holder: x}) for x in batches[start : start + 4]]
            wanted += [value for value, _ in every]
            sums = [sum(parts) for parts in zip(*(g for _, g in every))]
            made.session.run([v.assign_sub(0.05 * g) for v, g in zip(weights, sums)])
    np.testing.assert_allclose(np.ravel(losses), wanted, rtol=2e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_states_that_are_inputs_of_a_model(kind):
    x, y = data(4, 6, INPUTS), data(4, 5)
    given = [x, *(data(4, 5) for _ in range(2 if kind == "LSTM" else 1))]

    def made(kinds):
        inputs = [keras.Input(t.shape[1:]) for t in given]
        states = inputs[1:] if kind == "LSTM" else inputs[1]
        model = keras.Model(inputs, getattr(kinds, kind)(5)(inputs[0], initial_state=states))
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=kinds is keras.layers)
        return model

    cpu = made(keras.layers)
    first = cpu.get_weights()
    cpu.fit(given, y, batch_size=4, verbose=0)
    with ipus(1):
        model = made(layers)
        model.set_weights(first)
        model.fit(given, y, batch_size=4, verbose=0)
        same(model.get_weights(), cpu.get_weights())


# -- layers in programs of version 1 -----------------------------------------------------------------------------------


tf1 = tf.compat.v1


def test_a_layer_of_version_1_is_that_of_keras():
    layer = ipu.rnn_ops.PopnnLSTM(UNITS, weights_initializer=tf1.random_normal_initializer(seed=1))
    x, theirs = data(5, 3, INPUTS), keras.layers.LSTM(UNITS, return_sequences=True, return_state=True, time_major=True)
    outputs, state = layer(x)
    theirs(x)
    kernel = layer.kernel.numpy()
    theirs.set_weights([kernel[:INPUTS], kernel[INPUTS:], np.zeros(4 * UNITS, np.float32)])
    same([outputs, state.h, state.c], theirs(x))
    assert (layer.kernel.shape, layer.biases.shape) == ((INPUTS + UNITS, 4 * UNITS), (4, UNITS))


@pytest.mark.heavy
def test_dynamic_rnn_in_a_loop_sees_every_update() -> None:
    """TensorFlow 1 has cells read a cached value of their weights; in a loop of updates they read the weights."""
    rows = data(5, 3, 5, INPUTS)

    def net(x):
        cell = tf1.nn.rnn_cell.LSTMCell(UNITS, initializer=tf1.random_normal_initializer(seed=1, stddev=0.3))
        outputs, state = tf1.nn.dynamic_rnn(cell, x, sequence_length=np.array([5, 2, 4], np.int32), dtype=tf.float32)
        loss = tf.reduce_sum(outputs**2) + tf.reduce_sum(state.h)
        return loss, tf1.train.MomentumOptimizer(0.01, 0.9).minimize(loss)

    with graphs() as made:
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(rows))
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

        def body(x):
            loss, train = net(x)
            with tf.control_dependencies([train]):
                return outfeed.enqueue(tf.identity(loss))

        run = Compiled(lambda: ipu.loops.repeat(5, body, [], infeed), [], [infeed])
        run()
        losses = made.session.run(outfeed.dequeue())
        kinds = [op.type for graph in run.program.ir.all_graphs() for op in graph.ops]
        assert kinds.count("Loop") == 3
        made.fresh()
        tf1.enable_resource_variables()
        holder = tf1.placeholder(tf.float32, rows.shape[1:])
        loss, train = net(holder)
        made.session.run(tf1.variables_initializer(missing(made.session)))
        wanted = [made.session.run([loss, train], {holder: x})[0] for x in rows]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5, atol=1e-6)
