"""Convolutions where PyTorch is not loaded: NumPy's part of the numeric half, in both precisions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from bounds import Row, in_turns

BATCH, CHANNELS, SIZE, KERNEL = 8, 32, 28, 3
SINGLE, HALF = "convolution with gradients, float32", "convolution with gradients, float16"
BOUNDS = {SINGLE: 0.6, HALF: 1.7}


def _data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    image = generator.normal(size=(BATCH, CHANNELS, SIZE, SIZE))
    return image.astype(np.float32), generator.normal(size=(CHANNELS, CHANNELS, KERNEL, KERNEL)).astype(np.float32)


def ours(half: bool) -> Callable[[], object]:
    """``session.run`` of a PopXL program: a convolution, and its gradients by the image and by the weights."""
    import ipuperf

    ipuperf.install()
    import popxl
    from popxl import ops

    image, weights = _data()
    dtype = popxl.float16 if half else popxl.float32
    ir = popxl.Ir()
    with ir.main_graph:
        x = ops.host_load(popxl.h2d_stream(image.shape, dtype, "image"))
        w = popxl.variable(weights, dtype, name="w")
        forward = ir.create_graph(lambda a, b: ops.conv(a, b, stride=(1, 1), padding=(1, 1, 1, 1)), x, w)
        gradients = popxl.transforms.autodiff(forward)
        info = ops.call_with_info(forward, x, w)
        (y,) = info.outputs
        for found in ops.call(gradients.graph, y, inputs_dict=gradients.inputs_dict(info)):
            ops.host_store(popxl.d2h_stream(found.shape, found.dtype, "gradient"), found)
    session = popxl.Session(ir, "ipu_hw")
    session.__enter__()
    feeds = {next(iter(session.expected_inputs())): image.astype(np.float16) if half else image}
    return lambda: session.run(feeds)


def _windows(image: np.ndarray) -> np.ndarray:
    """``(batch, channels, height, width, kernel, kernel)`` of an image padded by one."""
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.lib.stride_tricks.sliding_window_view(padded, (KERNEL, KERNEL), (2, 3))


def by_hand() -> Callable[[], object]:
    """The same mathematics: windows of the image in one matrix product each."""
    image, weights = _data()

    def step() -> tuple[np.ndarray, np.ndarray]:
        windows = _windows(image)
        y = np.tensordot(windows, weights, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)
        by_weights = np.tensordot(y, windows, ((0, 2, 3), (0, 2, 3)))
        turned = weights[:, :, ::-1, ::-1]
        return np.tensordot(_windows(y), turned, ((1, 4, 5), (0, 2, 3))).transpose(0, 3, 1, 2), by_weights

    return step


def rows(repeats: int) -> list[Row]:
    """Both rows."""
    single = ours(half=False)
    seconds, reference = in_turns(single, by_hand(), repeats)
    halves, singles = in_turns(ours(half=True), single, repeats)
    return [Row(SINGLE, seconds, "hand-written NumPy", reference), Row(HALF, halves, "the same in float32", singles)]
