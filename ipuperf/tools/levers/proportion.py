"""The lever on how much of a tile's memory products and convolutions may take for temporary data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ipuperf.ir import Ir, Op
from ipuperf.runtime.model_revision import ModelRequest

from .change import ProgramChange
from .rerun import Rerun
from .trial import Lever, Trial, Untried, each_simulated

SHARES = (0.1, 0.3, 0.6, 1.0)
"""The shares that are tried."""

_ATTRIBUTE = "available_memory_proportion"


def _planned(ir: Ir) -> list[Op]:
    return [op for graph in ir.all_graphs() for op in graph.ops if _ATTRIBUTE in op.declared]


class MemoryProportion(Lever):
    """All products and convolutions of the program get another share of memory."""

    change = "available memory proportion"
    moves_work = True

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        ops = _planned(run.executable.ir)
        present = {op.attributes.get(_ATTRIBUTE) or 0.6 for op in ops}
        shares = [share for share in SHARES if ops and present != {share}]
        yield from each_simulated(run, [self._change(run, share, len(ops)) for share in shares])

    def _change(self, run: Rerun, share: float, count: int) -> ProgramChange:
        what = f"give products the available memory proportion {share}"
        if run.torch_model is None:
            # Each op has an argument of its own.
            what += f" ({count} ops)"
            return ProgramChange(what, of_ir=partial(_set_shares, share=share))
        shares = {f"IPU{ipu}": share for ipu in range(len(run.device_program.ipus))}

        def set_option(request: ModelRequest) -> None:
            request.options.setAvailableMemoryProportion(shares)

        diff = run.option("setAvailableMemoryProportion", repr(shares))
        return ProgramChange(what, diff=diff, of_model=set_option)


def _set_shares(ir: Ir, share: float) -> None:
    for op in _planned(ir):
        op.attributes[_ATTRIBUTE] = share
