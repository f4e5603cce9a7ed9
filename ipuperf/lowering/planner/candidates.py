"""What the search of the convolution planner looks at: forms with vertices, in some numbers of serial passes, and what
each of them takes and holds at least."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from .bounds import least_bytes, least_spread
from .form import ONCE, Form, Passes, Types, forms
from .plan import Request
from .reductions import least_reductions
from .splits import field_grain, useful_splits
from .terms import least_transform, set_aside, slices_at_least
from .vertices import Kernel, kernels, least_cycles, loop_cycles

if TYPE_CHECKING:
    from ipuperf.machine import Chip


#: The most serial passes that are tried.
_MOST_PASSES = 1024

#: Serial passes that are tried although one pass fits.
FEW_PASSES = tuple(passes for n in (2, 3, 4) for passes in (Passes(n, ahead=True), Passes(inner=n)))


@lru_cache(maxsize=1024)
def divisors(channels: int) -> tuple[int, ...]:
    """Numbers of serial passes into which so many channels can be divided: PopLibs repeats one convolution, so all have
    one size (``lib/poplin/ConvModel.cpp`` constructModel)."""
    return tuple(n for n in range(2, min(channels, _MOST_PASSES) + 1) if channels % n == 0)


def serial_counts(channels: int) -> list[int]:
    """Of the divisors those that are tried first: each at least a half more than the one before."""
    found: list[int] = []
    for count in divisors(channels):
        if 2 * count >= 3 * (found[-1] if found else 1):
            found.append(count)
    return found


def output_passes(form: Form) -> tuple[Passes, ...]:
    """Serial passes over output channels, with the operands exchanged or not: what is tried first."""
    counts = {*serial_counts(form.out_channels), *serial_counts(form.batch)}
    return tuple(Passes(out=n, ahead=True) for n in sorted(counts))


def smaller_passes(form: Form) -> tuple[Passes, ...]:
    """Serial passes that are tried when none of those fits: inputs brought in anew, or over input channels."""
    anew = (replace(passes, ahead=False) for passes in output_passes(form))
    return (*anew, *(Passes(inner=n) for n in serial_counts(form.in_channels)))


def passes_near(form: Form, count: int) -> tuple[Passes, ...]:
    """Serial passes around a number of passes over output channels: every divisor between half and twice as many, with
    the inputs brought to the tiles in each of them, or over input channels."""
    outer = {*divisors(form.out_channels), *divisors(form.batch)}
    every = [Passes(n, ahead=ahead) for n in sorted(outer) for ahead in (True, False)]
    every += [Passes(inner=n) for n in divisors(form.in_channels)]
    return tuple(
        passes for passes in every if count <= 2 * passes.count < 4 * count and passes != Passes(count, ahead=True)
    )


@dataclass(frozen=True)
class Candidate:
    """A form with a vertex: cycles that it takes at least in all (``whole``), on top in each serial pass (``each``),
    for rearrangements in each pass (``transform``; but for the inputs: ``later``) and slices in each of several
    (``slices``), and the bytes of the rearrangements on a tile (``held``)."""

    whole: float
    each: float
    transform: int
    later: int
    held: int
    form: Form
    kernel: Kernel
    slices: int

    def moved(self, passes: Passes) -> float:
        """Cycles that rearrangements and slices take at least: each pass of several cuts out its weights and writes its
        result (or adds it)."""
        slices = self.slices if passes.count > 1 else 0
        return passes.count * ((self.later if passes.ahead else self.transform) + slices)

    def least(self, passes: Passes) -> float:
        """No plan in these passes takes less."""
        return self.whole + passes.count * self.each + self.moved(passes)

    def possible(self, passes: Passes, request: Request) -> bool:
        """Whether the channels can be divided into these passes: those of the operands as they are or exchanged, before
        axes become channels."""
        outer = request.form.batch if self.form.swapped else request.form.out_channels
        return request.form.in_channels % passes.inner == 0 and outer % passes.out == 0

    def least_bytes(self, passes: Passes, request: Request) -> float:
        """No plan in these passes holds fewer bytes on a tile."""
        held, form, tiles = self.held if passes.ahead else 2 * self.held, self.form, request.chip.tiles
        if passes.count > 1 and form.pass_.startswith("fc"):  # the weights, laid out for slicing
            share = form.groups * form.in_channels * form.out_channels * request.types.input // tiles
            held = share + max(share, held)
        if passes.inner > 1:  # the sums so far
            outputs = form.batch * form.groups * form.out_channels * math.prod(axis.output for axis in form.axes)
            held = max(held, 2 * outputs * self.kernel.partial_size // tiles)
        aside = set_aside(form, self.kernel, request.types, passes, request.chip)
        return max(held, aside + least_bytes(form, self.kernel, request.types, passes, tiles))


_Finder = Callable[[Form, "Chip", int, int, int], Iterable[Kernel]]


def candidates_among(request: Request, changed: Iterable[Form], find: _Finder, bound: float) -> list[Candidate]:
    """What may take ``bound`` cycles or fewer."""
    chip, types, found = request.chip, request.types, []
    for plain in changed:
        for kernel in find(plain, chip, types.input, types.partial, types.output):
            grain = field_grain(plain, kernel, types)
            form = replace(plain, grain=grain) if grain > 1 else plain
            whole, each = least_cycles(form, kernel, chip)
            if kernel.method == "HMAC" and whole + each <= bound:
                if least_spread(form, kernel, types, ONCE, chip) > bound:
                    continue
                each += _least_hmac(form, kernel, types, chip)
            if whole + each <= bound:
                total, later, held = least_transform(form, kernel, types, chip)
                found.append(Candidate(whole, each, total, later, held, form, kernel, slices_at_least(chip)))
    return found


@lru_cache(maxsize=256)
def forms_of(request: Request) -> tuple[Form, ...]:
    """The forms in which a request can be worked out."""
    return tuple(forms(request.form, request.types.input))


@lru_cache(maxsize=256)
def every_candidate(request: Request) -> tuple[Candidate, ...]:
    """Every form with every vertex but HMAC."""
    return tuple(candidates_among(request, forms_of(request), kernels, math.inf))


def _least_hmac(form: Form, kernel: Kernel, types: Types, chip: Chip) -> float:
    """Cycles that the loops over input channels on a tile and the reduction of their partial sums take at least,
    whichever way the channels are split: few tiles loop long, many have much to reduce."""
    inner = -(-form.in_channels // kernel.in_grouping)
    split = useful_splits(inner, chip.tiles)
    loops = loop_cycles(form, kernel, chip) * form.axes[-1].kernel
    return float((-(-inner // split) * loops + least_reductions(kernel.partial_size, types.output, chip)[split]).min())
