"""Speed of ``session.run``: tutorial 003's training step against the NumPy loop of the same mathematics."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy_mlp
from bounds import Row, in_turns

BATCH = 8
LEARNING_RATE = 0.05
STEPS = 100
NAME = "tutorial 003 training step"
BOUNDS = {NAME: 1.4}


def training_session() -> tuple[Any, Any, Any, Any]:
    """Tutorial 003's training program: session, image stream, label stream, variables."""
    import ipuperf

    ipuperf.install()
    import popxl
    import popxl_addons as addons
    from popxl import ops

    from ipuperf.models.mnist_mlp import Classifier

    ir = popxl.Ir(replication=1)
    with ir.main_graph:
        images = popxl.h2d_stream((BATCH, 28, 28), popxl.float32, "image")
        labels = popxl.h2d_stream((BATCH,), popxl.int32, "labels")
        image, label = ops.host_load(images), ops.host_load(labels, "labels")
        factories, forward = Classifier((512, 512, 512), 10).create_graph(image)
        backward = addons.autodiff(forward)
        variables = factories.init()
        info = forward.bind(variables).call_with_info(image)
        loss, gradient = addons.ops.cross_entropy_with_grad(info.outputs[0], label)
        ops.host_store(popxl.d2h_stream(loss.shape, loss.dtype, "loss"), loss)
        grads = backward.call_with_info(gradient, args=backward.grad_graph_info.inputs_dict(info))
        by_variable = backward.grad_graph_info.fwd_parent_ins_to_grad_parent_outs(info, grads)
        for variable in variables.tensors:
            ops.scaled_add_(variable, by_variable[variable], b=-LEARNING_RATE)
    return popxl.Session(ir, "ipu_hw"), images, labels, variables


def rows(repeats: int) -> list[Row]:
    """One row."""
    session, images, labels, _ = training_session()
    generator = np.random.default_rng(0)
    batches = [
        (generator.normal(size=(BATCH, 28, 28)).astype(np.float32), generator.integers(0, 10, BATCH).astype(np.int32))
        for _ in range(STEPS)
    ]
    parameters = numpy_mlp.initial_weights()
    with session:

        def ours() -> None:
            for image, label in batches:
                session.run({images: image, labels: label})

        def reference() -> None:
            for image, label in batches:
                numpy_mlp.step(parameters, image, label, LEARNING_RATE)

        seconds, reference_seconds = in_turns(ours, reference, repeats)
    return [Row(NAME, seconds / STEPS, "hand-written NumPy loop", reference_seconds / STEPS)]
