"""The reference of the training benchmark: tutorial 003's mathematics as a straightforward NumPy loop.

784-512-512-512-10 with GELU (tanh form), softmax cross entropy (mean), SGD; fp32, one replica.
"""

from __future__ import annotations

import numpy as np

SIZES = (784, 512, 512, 512, 10)
SQRT_2_OVER_PI = np.float32(0.7978845608)
CUBIC = np.float32(0.044715)
HALF, ONE, THREE = np.float32(0.5), np.float32(1), np.float32(3)


def initial_weights(seed: int = 0) -> list[np.ndarray]:
    """Weight, bias, weight, bias ... with weights from N(0, 0.02)."""
    generator = np.random.default_rng(seed)
    parameters = []
    for rows, columns in zip(SIZES, SIZES[1:], strict=False):
        parameters.append(generator.normal(0, 0.02, (rows, columns)).astype(np.float32))
        parameters.append(np.zeros(columns, np.float32))
    return parameters


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form."""
    return HALF * x * (ONE + np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x)))


def gelu_gradient(x: np.ndarray, upstream: np.ndarray) -> np.ndarray:
    """``upstream`` times the derivative of :func:`gelu` at ``x``."""
    tanh = np.tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x))
    inner = SQRT_2_OVER_PI * (ONE + THREE * CUBIC * x * x)
    return upstream * (HALF * (ONE + tanh) + HALF * x * (ONE - tanh * tanh) * inner)


def step(parameters: list[np.ndarray], images: np.ndarray, labels: np.ndarray, learning_rate: float) -> float:
    """One SGD step in place; returns the loss."""
    x = images.reshape(len(images), -1)
    inputs, sums = [], []
    layers = len(parameters) // 2
    for layer in range(layers):
        inputs.append(x)
        z = x @ parameters[2 * layer] + parameters[2 * layer + 1]
        sums.append(z)
        x = gelu(z) if layer < layers - 1 else z
    shifted = np.exp(x - x.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(probabilities[rows, labels]).mean())
    gradient = probabilities
    gradient[rows, labels] -= ONE
    gradient /= np.float32(len(labels))
    gradients: list[np.ndarray] = []
    for layer in reversed(range(layers)):
        gradients += [gradient.sum(axis=0), inputs[layer].T @ gradient]
        if layer:
            gradient = gelu_gradient(sums[layer - 1], gradient @ parameters[2 * layer].T)
    for parameter, value in zip(parameters, reversed(gradients), strict=True):
        parameter -= np.float32(learning_rate) * value
    return loss
