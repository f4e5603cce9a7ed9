"""The mathematics of training through the real front ends, against float64 NumPy and PyTorch written out here."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

CLASSES = 10
SMALL = (24, 16)
STEPS = 3
ADAM_STEPS = 2
"""Of the table's program in its real size: the second has moments and a step number that are not those of the start."""
LEARNING_RATE = 0.5
THRESHOLDS = (None, math.inf, 262145, 1024, 512)
Named = dict[str, np.ndarray]


# -- the oracle --------------------------------------------------------------------------------------------------------


def gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tanh form and its derivative."""
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * c * (1 + 3 * 0.044715 * x**2)


def loss_and_gradients(weights: Named, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, Named]:
    """Cross entropy of each sample, and the gradients of their mean, in float64."""
    layers = len(weights) // 2
    value = {name: w.astype(np.float64) for name, w in weights.items()}
    x = images.reshape(len(images), -1).astype(np.float64)
    inputs, slopes = [], []
    for layer in range(1, layers + 1):
        inputs.append(x)
        x = x @ value[f"fc{layer}.weight"] + value[f"fc{layer}.bias"]
        if layer < layers:
            x, slope = gelu(x)
            slopes.append(slope)
    x = x - x.max(axis=1, keepdims=True)
    probabilities = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    losses = -np.log(probabilities[rows, labels])
    delta = probabilities
    delta[rows, labels] -= 1
    delta /= len(labels)
    grads: Named = {}
    for layer in range(layers, 0, -1):
        grads[f"fc{layer}.bias"] = delta.sum(axis=0)
        grads[f"fc{layer}.weight"] = inputs[layer - 1].T @ delta
        if layer > 1:
            delta = (delta @ value[f"fc{layer}.weight"].T) * slopes[layer - 2]
    return losses, grads


def batches(steps: int, samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images like normalised MNIST, mostly dark, and labels."""
    rng = np.random.default_rng(seed)
    light = rng.random((steps, samples, 28, 28)) < 0.2
    images = np.where(light, rng.uniform(0, 2.8, light.shape), -0.4242).astype(np.float32)
    return images, rng.integers(0, CLASSES, (steps, samples)).astype(np.int32)


def assert_moved_alike(start: Named, found: Named, expected: Named) -> None:
    """Training moved every weight as expected, to 1e-5 of the largest move of its tensor and the rounding of fp32."""
    for name, weight in expected.items():
        largest = np.abs(weight - start[name]).max()
        assert largest > 1e-5, f"{name} was not trained"
        slack = 1e-5 * largest + STEPS * np.spacing(np.abs(weight).astype(np.float32))
        difference = np.abs(found[name] - weight)
        assert (difference <= slack).all(), f"{name}: off by {difference.max()}, moved by {largest}"


# -- programs ----------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _names(upstream_names: None) -> None:
    """Every test imports ``popxl``."""


@dataclass
class Program:
    """A session with its streams; ``weights`` and ``gradients`` by the names of the model."""

    session: Any
    images: Any
    labels: Any
    loss: Any
    variables: Any
    gradients: dict[str, Any]

    def weights(self) -> Named:
        """Copies of the weights on the host."""
        data = self.session.get_tensors_data(self.variables.tensors)
        return {name: data[t].copy() for name, t in self.variables.named_tensors.items()}

    def run(self, images: np.ndarray, labels: np.ndarray) -> dict[Any, np.ndarray]:
        """One step on samples ``(n, 28, 28)``, laid out as (transfers, replicas, micro-batch)."""
        with self.session:
            return self.session.run(
                {
                    self.images: images.reshape(self.session._full_input_shape(self.images.shape)),
                    self.labels: labels.reshape(self.session._full_input_shape(self.labels.shape)),
                }
            )


def sgd_program(micro_batch: int, accumulation: int = 1, replicas: int = 1, lr: float = LEARNING_RATE) -> Program:
    """SGD on the model, with gradients accumulated and reduced over replicas; they also go to the host."""
    import popxl
    import popxl_addons as addons
    from popxl import ops

    from ipuperf.models.mnist_mlp import Classifier

    np.random.seed(11)  # noqa: NPY002 - the model draws its weights from the global generator
    ir = popxl.Ir(replication=replicas)
    ir.num_host_transfers = accumulation
    with ir.main_graph, popxl.in_sequence(True):
        images = popxl.h2d_stream((micro_batch, 28, 28), popxl.float32, "image")
        labels = popxl.h2d_stream((micro_batch,), popxl.int32, "labels")
        loss_stream = popxl.d2h_stream((), popxl.float32, "loss")
        spec = popxl.TensorSpec((micro_batch, 28, 28), popxl.float32)
        factories, forward = Classifier(SMALL, CLASSES).create_graph(spec)
        variables = factories.init()
        grad_factories, backward = addons.autodiff_with_accumulation(forward, forward.args.tensors)
        accumulators = grad_factories.init()
        for _ in range(accumulation):
            info = forward.bind(variables).call_with_info(ops.host_load(images))
            loss, gradient = addons.ops.cross_entropy_with_grad(info.outputs[0], ops.host_load(labels))
            ops.host_store(loss_stream, loss)
            activations = backward.grad_graph_info.inputs_dict(info)
            backward.bind(accumulators).call(gradient, args=activations)
        streams = {}
        for key, grad in accumulators.named_tensors.items():
            if key == "mean_accum_counter":
                continue
            name = key.removeprefix("accum.")
            ops.collectives.replicated_all_reduce_(grad, op="mean")
            streams[name] = _store_once(grad, accumulation)
            ops.scaled_add_(variables[name], grad, b=-lr)
        ops.var_updates.accumulator_scale_(accumulators.mean_accum_counter, 0.0)
    return Program(popxl.Session(ir, "ipu_hw"), images, labels, loss_stream, variables, streams)


def _store_once(tensor: Any, transfers: int) -> Any:
    """A stream that gets the tensor as often as every stream is written in a run."""
    import popxl
    from popxl import ops

    stream = popxl.d2h_stream(tensor.shape, tensor.dtype, "gradient")
    for _ in range(transfers):
        ops.host_store(stream, tensor)
    return stream


def first(array: np.ndarray, program: Program, stream: Any) -> np.ndarray:
    """What the first transfer of the first replica holds."""
    return array.reshape(-1, *stream.shape)[0]


# -- gradients and SGD -------------------------------------------------------------------------------------------------

SHAPES = [(8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 2, 4)]


@pytest.mark.parametrize(("micro_batch", "accumulation", "replicas"), SHAPES)
def test_losses_gradients_and_sgd_updates_equal_numpy(micro_batch: int, accumulation: int, replicas: int) -> None:
    program = sgd_program(micro_batch, accumulation, replicas)
    samples = micro_batch * accumulation * replicas
    images, labels = batches(STEPS, samples)
    start = program.weights()
    expected = {name: w.astype(np.float64) for name, w in start.items()}
    for step in range(STEPS):
        losses, grads = loss_and_gradients(expected, images[step], labels[step])
        outputs = program.run(images[step], labels[step])
        by_micro_batch = losses.reshape(-1, micro_batch).mean(axis=1)
        np.testing.assert_allclose(outputs[program.loss].reshape(-1), by_micro_batch, rtol=1e-5)
        for name, stream in program.gradients.items():
            scale = np.abs(grads[name]).max()
            found = first(outputs[stream], program, stream)
            np.testing.assert_allclose(found, grads[name], rtol=1e-5, atol=2e-6 * scale, err_msg=f"{name}, step {step}")
            expected[name] -= LEARNING_RATE * grads[name]
        assert_moved_alike(start, program.weights(), expected)


def test_gradients_equal_pytorch() -> None:
    torch = pytest.importorskip("torch")
    program = sgd_program(8)
    (images,), (labels,) = batches(1, 8, seed=3)
    start = {name: torch.tensor(w, requires_grad=True) for name, w in program.weights().items()}
    x = torch.tensor(images).reshape(8, -1)
    for layer in (1, 2, 3):
        x = x @ start[f"fc{layer}.weight"] + start[f"fc{layer}.bias"]
        if layer < 3:
            x = torch.nn.functional.gelu(x, approximate="tanh")
    loss = torch.nn.functional.cross_entropy(x, torch.tensor(labels).long())
    loss.backward()
    outputs = program.run(images, labels)
    np.testing.assert_allclose(outputs[program.loss], loss.item(), rtol=1e-5)
    for name, stream in program.gradients.items():
        grad = start[name].grad.numpy()
        np.testing.assert_allclose(outputs[stream], grad, rtol=1e-5, atol=2e-6 * np.abs(grad).max(), err_msg=name)


def test_the_oracle_equals_numerical_differentiation() -> None:
    """The oracle itself: central differences of its own loss."""
    rng = np.random.default_rng(2)
    sizes = (784, 5, CLASSES)
    weights: Named = {}
    for layer, (rows, columns) in enumerate(zip(sizes, sizes[1:]), start=1):
        weights[f"fc{layer}.weight"] = rng.normal(0, 0.1, (rows, columns))
        weights[f"fc{layer}.bias"] = rng.normal(0, 0.1, columns)
    (images,), (labels,) = batches(1, 4)
    _, grads = loss_and_gradients(weights, images, labels)
    for name, weight in weights.items():
        index = tuple(rng.integers(0, n) for n in weight.shape)
        ends = []
        for h in (1e-6, -1e-6):
            moved = {k: v.copy() for k, v in weights.items()}
            moved[name][index] += h
            ends.append(loss_and_gradients(moved, images, labels)[0].mean())
        assert grads[name][index] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("micro_batch", "accumulation", "replicas"), SHAPES[1:])
def test_replicas_and_accumulation_equal_one_replica_on_the_global_batch(
    micro_batch: int, accumulation: int, replicas: int
) -> None:
    images, labels = batches(STEPS, micro_batch * accumulation * replicas)
    many = sgd_program(micro_batch, accumulation, replicas)
    one = sgd_program(micro_batch * accumulation * replicas)
    start = one.weights()
    for step in range(STEPS):
        many.run(images[step], labels[step])
        one.run(images[step], labels[step])
    assert_moved_alike(start, many.weights(), one.weights())


# -- Adam --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("corrected", [False, True])
def test_adam_in_fp32_equals_numpy(corrected: bool, decay: float) -> None:
    """The ops of the tutorial's Adam on one tensor, five steps, moments in fp32."""
    import popxl
    from popxl import ops

    rng = np.random.default_rng(4)
    start = rng.normal(0, 0.02, (6, 7)).astype(np.float32)
    grads = (rng.normal(size=(5, 6, 7)) * np.logspace(-6, 0, 7)).astype(np.float32)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence(True):
        stream = popxl.h2d_stream((6, 7), popxl.float32, "gradient")
        var = popxl.variable(start, name="var")
        m, v = (popxl.variable(np.zeros((6, 7), np.float32), name=n) for n in "mv")
        count = popxl.variable(np.float32(0), name="step")
        grad = ops.host_load(stream)
        ops.var_updates.accumulate_moving_average_(m, grad, f=0.9)
        ops.var_updates.accumulate_moving_average_square_(v, grad, f=0.999)
        updater = ops.var_updates.adam_updater(
            m,
            v,
            weight=var,
            weight_decay=decay,
            time_step=count if corrected else None,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-5,
        )
        ops.scaled_add_(var, updater, b=-1e-3)
    session = popxl.Session(ir, "ipu_hw")
    with session:
        for grad in grads:
            session.run({stream: grad})
    expected, first_moment, second_moment = start.astype(np.float64), np.zeros((6, 7)), np.zeros((6, 7))
    for step, grad in enumerate(grads.astype(np.float64), start=1):
        first_moment = 0.9 * first_moment + 0.1 * grad
        second_moment = 0.999 * second_moment + 0.001 * grad**2
        unbias = (1 - 0.9**step, 1 - 0.999**step) if corrected else (1, 1)
        update = (first_moment / unbias[0]) / (np.sqrt(second_moment / unbias[1]) + 1e-5) + decay * expected
        expected -= 1e-3 * update
    np.testing.assert_allclose(session.get_tensor_data(var), expected, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(session.get_tensor_data(m), first_moment, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(session.get_tensor_data(v), second_moment, rtol=1e-5, atol=1e-20)
    assert session.get_tensor_data(count) == (5 if corrected else 0)


def adam_reference(start: Named, images: np.ndarray, labels: np.ndarray) -> Named:
    """The tutorial's Adam: first moment and updater in fp16, second moment in fp32, bias corrected; what makes up the
    first moment, and its correction, in fp16 too."""
    keep, add = np.float16(0.9).astype(np.float64), np.float16(0.1).astype(np.float64)
    weights = {name: w.astype(np.float64) for name, w in start.items()}
    first_moment = {name: np.zeros_like(w, np.float16) for name, w in start.items()}
    second_moment = {name: np.zeros_like(w, np.float64) for name, w in start.items()}
    for step in range(1, len(images) + 1):
        _, grads = loss_and_gradients(weights, images[step - 1], labels[step - 1])
        for name, grad in grads.items():
            gradient = grad.astype(np.float16).astype(np.float64)
            first_moment[name] = (keep * first_moment[name].astype(np.float64) + add * gradient).astype(np.float16)
            second_moment[name] = 0.999 * second_moment[name] + 0.001 * grad**2
            root = np.sqrt(second_moment[name] / (1 - 0.999**step)) + 1e-5
            corrected = first_moment[name] / np.float16(1 - 0.9**step)
            updater = (corrected.astype(np.float64) / root).astype(np.float16)
            weights[name] -= 1e-3 * updater.astype(np.float64)
    return weights


@pytest.fixture(scope="module")
def adam_runs(installed_front_ends: Callable) -> dict[Any, tuple[Named, Named, np.ndarray]]:
    """The table's program in its five placements, two steps each on the same batches: weights before and after, and
    the losses."""
    runs = {}
    with installed_front_ends():
        from ipuperf.models.mnist_mlp import TrainingOptions, training_session

        for threshold in THRESHOLDS:
            np.random.seed(7)  # noqa: NPY002 - the model draws its weights from the global generator
            options = TrainingOptions(threshold=threshold, gradient_accumulation=2)
            training = training_session(options)
            program = Program(training.session, training.images, training.labels, training.loss, training.variables, {})
            images, labels = batches(ADAM_STEPS, options.global_batch_size)
            before = program.weights()
            losses = [program.run(i, n)[program.loss] for i, n in zip(images, labels, strict=True)]
            runs[threshold] = (before, program.weights(), np.array(losses))
    return runs


@pytest.mark.heavy
def test_adam_of_the_tables_program_equals_numpy(adam_runs: dict[Any, tuple[Named, Named, np.ndarray]]) -> None:
    """Moments in fp16 may round the other way where the gradient differs in its last bit: one unit of the moment and of
    the updater in a step, for a few elements."""
    before, after, losses = adam_runs[None]
    images, labels = batches(ADAM_STEPS, 64)
    expected = adam_reference(before, images, labels)
    first_losses, _ = loss_and_gradients(before, images[0], labels[0])
    np.testing.assert_allclose(losses[0].reshape(-1), first_losses.reshape(-1, 8).mean(axis=1), rtol=1e-5)
    for name, weight in after.items():
        difference = np.abs(weight - expected[name])
        moved = np.abs(expected[name] - before[name])
        assert np.median(moved) > 1e-4, f"{name} was trained"
        assert np.quantile(difference, 0.99) < 2e-6, name
        assert difference.max() < 1e-4, name


@pytest.mark.parametrize("threshold", THRESHOLDS[1:])
def test_sharded_and_unsharded_placements_give_the_same_weights(
    adam_runs: dict[Any, tuple[Named, Named, np.ndarray]], threshold: float
) -> None:
    on_chip, off_chip = adam_runs[None], adam_runs[threshold]
    for name in on_chip[0]:
        np.testing.assert_array_equal(off_chip[0][name], on_chip[0][name], err_msg=f"{name} at the start")
    np.testing.assert_array_equal(off_chip[2], on_chip[2])
    for name in on_chip[1]:
        np.testing.assert_array_equal(off_chip[1][name], on_chip[1][name], err_msg=name)


def test_adam_on_four_replicas_equals_one_replica_on_the_global_batch() -> None:
    from ipuperf.models.mnist_mlp import TrainingOptions, training_session

    results = []
    images, labels = batches(STEPS, 64)
    for replicas, accumulation in ((4, 2), (1, 8)):
        np.random.seed(7)  # noqa: NPY002
        options = TrainingOptions(
            threshold=None, replicas=replicas, gradient_accumulation=accumulation, hidden=(64, 48)
        )
        training = training_session(options)
        program = Program(training.session, training.images, training.labels, training.loss, training.variables, {})
        for image, label in zip(images, labels, strict=True):
            program.run(image, label)
        results.append(program.weights())
    for name, weight in results[0].items():
        difference = np.abs(weight - results[1][name])
        assert np.quantile(difference, 0.99) < 2e-6, name
        assert difference.max() < 1e-4, name
