"""Small models in the idioms of today's PyTorch programs: ``CASES`` maps a name to a formula of a hidden state.

``formula(h, w)`` has the hidden states ``(batch, 8)`` of some samples and a parameter ``(8, 8)``, and gives one row of
numbers for each sample, or for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, func, nn
from torch.utils.checkpoint import checkpoint

Formula = Callable[[Tensor, Tensor], Tensor]
CASES: dict[str, Formula] = {}


def case(formula: Formula) -> Formula:
    CASES[formula.__name__] = formula
    return formula


class Model(nn.Module):
    """A layer, then a formula of what it gives, and the loss of both; in two blocks, if asked."""

    def __init__(self, formula: Formula, block: Callable[[str, int], Any]) -> None:
        super().__init__()
        self.layer, self.weight = nn.Linear(6, 8), nn.Parameter(torch.randn(8, 8) / 4)
        self.formula, self.block = formula, block

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with self.block("first", 0):
            h = torch.tanh(self.layer(x))
        with self.block("second", 1):
            z = self.formula(h, self.weight)
            return F.mse_loss(z, y.expand_as(z))


# -- complex numbers ---------------------------------------------------------------------------------------------------


def rotations(width: int, length: int) -> Tensor:
    """As Meta's Llama: ``exp(i t f)`` of each position and frequency."""
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, width, 2)[: width // 2].float() / width))
    angles = torch.outer(torch.arange(length), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


ROTATIONS = rotations(4, 2)


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)


@case
def rope_of_a_table(h: Tensor, w: Tensor) -> Tensor:
    return rotated((h @ w).view(-1, 2, 4), ROTATIONS).flatten(1)


@case
def rope_made_in_forward(h: Tensor, w: Tensor) -> Tensor:
    return rotated((h @ w).view(-1, 2, 4), rotations(4, 2)).flatten(1)


@case
def complex_product(h: Tensor, w: Tensor) -> Tensor:
    z = torch.complex(h[:, :4], h[:, 4:]) @ torch.complex(w[:4, :4], w[4:, 4:])
    return torch.cat([z.real, z.imag, z.conj().imag], 1)


@case
def complex_functions(h: Tensor, w: Tensor) -> Tensor:
    z = torch.polar(1 + (h @ w).square(), h)
    return (z.exp() / (z + 2j)).abs() + torch.angle(z)


@case
def state_space_kernel(h: Tensor, w: Tensor) -> Tensor:
    """As S4D: a diagonal state matrix, discretised."""
    poles = -torch.exp(w[0, :4]) + 1j * w[1, :4]
    powers = torch.exp(poles[:, None] * 0.1 * torch.arange(8))
    return h * 2 * torch.einsum("n,nl->l", torch.view_as_complex(w[2:6, :2].contiguous()), powers).real


@case
def fourier_mixing(h: Tensor, w: Tensor) -> Tensor:
    """As FNet."""
    return torch.fft.fft2((h @ w).view(-1, 2, 4), norm="ortho").real.flatten(1)


@case
def spectral_convolution(h: Tensor, w: Tensor) -> Tensor:
    """As a Fourier neural operator."""
    spectrum = torch.fft.rfft(h, norm="ortho")
    return torch.fft.irfft(spectrum * torch.view_as_complex(w[:5, :2].contiguous()), n=8, norm="ortho")


@case
def truncated_spectrum(h: Tensor, w: Tensor) -> Tensor:
    """As published Fourier neural operators: the lowest modes written into a spectrum of zeros."""
    mixed = torch.zeros(*h.shape[:-1], 5, dtype=torch.cfloat)
    mixed[:, :3] = torch.einsum("bi,io->bo", torch.fft.rfft(h)[:, :3], torch.complex(w[:3, :3], w[3:6, 3:6]))
    return torch.fft.irfft(mixed, n=8)


@case
def long_convolution(h: Tensor, w: Tensor) -> Tensor:
    """As Hyena: a product of spectra of twice the length."""
    spectra = torch.fft.rfft(h, n=16) * torch.fft.rfft(w[0], n=16)
    return torch.fft.irfft(spectra, n=16)[:, :8]


@case
def spectrogram(h: Tensor, w: Tensor) -> Tensor:
    spectrum = torch.stft(h @ w, 4, 2, window=torch.hann_window(4), return_complex=True)
    return spectrum.abs().square().flatten(1)


class Spectral(nn.Module):
    """With a complex parameter and a complex buffer."""

    def __init__(self, block: Callable[[str, int], Any]) -> None:
        super().__init__()
        self.layer, self.block = nn.Linear(6, 8), block
        self.spectrum = nn.Parameter(torch.randn(5, dtype=torch.cfloat))
        self.register_buffer("turns", rotations(4, 2), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with self.block("first", 0):
            h = rotated(torch.tanh(self.layer(x)).view(-1, 2, 4), self.turns).flatten(1)
        with self.block("second", 1):
            z = torch.fft.irfft(torch.fft.rfft(h) * self.spectrum, n=8)
            return F.mse_loss(z, y.expand_as(z))


# -- functions with a gradient of their own ----------------------------------------------------------------------------


class Rounded(torch.autograd.Function):
    """The straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x * 4) / 4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.neg() * ctx.factor, None


class Swish(torch.autograd.Function):
    """With what it saves, and a gradient limited as no formula of autograd's would."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, torch.sigmoid(x))
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, s = ctx.saved_tensors
        return (grad * (s + x * s * (1 - s))).clamp(-0.01, 0.01)


class Product(torch.autograd.Function):
    """Two operands, two results, and its context set up apart."""

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x @ w, w.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, other: Tensor) -> tuple[Any, Any]:
        x, w = ctx.saved_tensors
        of_x = grad @ w.T if ctx.needs_input_grad[0] else None
        of_w = x.T @ grad + 2 * w * other if ctx.needs_input_grad[1] else None
        return of_x, of_w


@case
def straight_through(h: Tensor, w: Tensor) -> Tensor:
    return Rounded.apply(h @ w) @ Rounded.apply(w)


@case
def gradient_reversal(h: Tensor, w: Tensor) -> Tensor:
    return torch.cat([h @ w, Reversed.apply(h, 0.3) @ w], 1)


@case
def clipped_swish(h: Tensor, w: Tensor) -> Tensor:
    return Swish.apply(h @ w)


@case
def function_of_two(h: Tensor, w: Tensor) -> Tensor:
    y, squares = Product.apply(h, w)
    return y + squares.sum(0)


# -- derivatives within the model --------------------------------------------------------------------------------------


def energy(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).square().sum(-1)


@case
def forces(h: Tensor, w: Tensor) -> Tensor:
    (force,) = torch.autograd.grad(energy(h, w).sum(), h, create_graph=True)
    return -force


@case
def gradient_penalty(h: Tensor, w: Tensor) -> Tensor:
    scores = F.softplus(h @ w) @ w[0]
    (slope,) = torch.autograd.grad(scores, h, torch.ones_like(scores), create_graph=True, retain_graph=True)
    return scores[:, None] + (slope.norm(2, dim=1, keepdim=True) - 1) ** 2


@case
def physics_residual(h: Tensor, w: Tensor) -> Tensor:
    """The second derivative of a network by its input."""
    x = h[:, :1].detach().clone().requires_grad_()
    u = torch.tanh(x * w[0]) @ w[1:2].T
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    return second + u * h.mean()


@case
def inner_step(h: Tensor, w: Tensor) -> Tensor:
    """As MAML: one step of a copy of the weights, then the loss with it."""
    (step,) = torch.autograd.grad((h @ w).square().mean(), w, create_graph=True)
    return h @ (w - 0.1 * step)


@case
def func_grad(h: Tensor, w: Tensor) -> Tensor:
    return func.vmap(func.grad(energy), (0, None))(h, w)


@case
def func_jacobian(h: Tensor, w: Tensor) -> Tensor:
    return func.vmap(func.jacrev(lambda x: torch.tanh(x @ w)))(h).flatten(1)


@case
def func_hessian(h: Tensor, w: Tensor) -> Tensor:
    return func.vmap(func.hessian(energy), (0, None))(h, w).diagonal(dim1=1, dim2=2)


@case
def func_jvp(h: Tensor, w: Tensor) -> Tensor:
    return func.jvp(lambda x: torch.tanh(x @ w), (h,), (torch.ones_like(h),))[1]


# -- masks -------------------------------------------------------------------------------------------------------------


@case
def zeroed_by_mask(h: Tensor, w: Tensor) -> Tensor:
    y = (h @ w).clone()
    y[y < 0] = 0.1
    return y


# -- control flow ------------------------------------------------------------------------------------------------------


@case
def conditional(h: Tensor, w: Tensor) -> Tensor:
    return torch.cond(h.sum() > 0, lambda h, w: torch.sin(h @ w), lambda h, w: h @ w.T, (h, w))


# -- functions ---------------------------------------------------------------------------------------------------------


def well_conditioned(w: Tensor) -> Tensor:
    return torch.eye(8) * 3 + w


@case
def linear_equations(h: Tensor, w: Tensor) -> Tensor:
    return torch.linalg.solve(well_conditioned(w), h.T).T


@case
def inverse(h: Tensor, w: Tensor) -> Tensor:
    return h @ torch.linalg.inv(well_conditioned(w))


@case
def running_logsumexp(h: Tensor, w: Tensor) -> Tensor:
    return torch.logcumsumexp(h @ w, 1)


@case
def error_function_inverse(h: Tensor, w: Tensor) -> Tensor:
    return torch.erfinv(0.9 * torch.tanh(h @ w))


@case
def gamma_logarithm(h: Tensor, w: Tensor) -> Tensor:
    return torch.lgamma(1.5 + (h @ w).square()) / math.pi


@case
def checkpointed(h: Tensor, w: Tensor) -> Tensor:
    result: Tensor = checkpoint(lambda x: torch.tanh(x @ w), h, use_reentrant=False)
    return result


@case
def ensemble(h: Tensor, w: Tensor) -> Tensor:
    return func.vmap(lambda m: h @ m)(torch.stack([w, w.T])).mean(0)
