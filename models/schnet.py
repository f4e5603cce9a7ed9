"""SchNet: energies of molecules from the numbers and places of their atoms, by convolutions over neighbours.

As in Graphcore Research's program for HydroNet and QM9 (github: graphcore-research/hydronet-gnn,
``hydronet/model.py``) with PyTorch Geometric's layers: molecules are packed until a pack has its number of atoms,
neighbours are looked for in the whole micro-batch, lookups and sums over edges are by index. One IPU for each replica.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

from ipuperf.models.ipu_run import ModelRun, RunOptions, poptorch_options

if TYPE_CHECKING:
    from ipuperf.validation.cases import Case
    from ipuperf.validation.programs import Program

__all__ = [
    "InteractionBlock",
    "SchNet",
    "SchNetOptions",
    "batch",
    "model",
    "poptorch_options",
    "simulate",
    "throughput",
    "validation_program",
]

#: Kinds of atoms that have an embedding.
ATOMS = 100


@dataclass(frozen=True)
class SchNetOptions(RunOptions):
    """Sizes (default: as for QM9) and how it runs.

    Attributes:
        micro_batch: packs of molecules.
        pack_atoms, pack_molecules: atoms and molecules of a pack, filled up where there are fewer.
        neighbours: of each atom, nearest first.
        cutoff: atoms further away are no neighbours.
        calls: calls of an epoch.
    """

    hidden: int = 100
    interactions: int = 4
    gaussians: int = 25
    neighbours: int = 28
    cutoff: float = 6.0
    pack_atoms: int = 36
    pack_molecules: int = 4
    calls: int = 1
    micro_batch: int = 16
    gradient_accumulation: int = 2
    precision: str = "32.32"
    optimiser: str = "adam"
    recompute: bool = False
    checkpoint_layers: bool = False
    merge_collectives: bool = True

    @property
    def atoms(self) -> int:
        """Atoms of a micro-batch."""
        return self.micro_batch * self.pack_atoms

    @property
    def molecules(self) -> int:
        """Molecules of a micro-batch."""
        return self.micro_batch * self.pack_molecules


class ShiftedSoftplus(nn.Module):
    """``log(1 + exp(x)) - log(2)``, written so that large numbers do not overflow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Any shape."""
        return torch.log1p(torch.exp(-x.abs())) + torch.clamp_min(x, 0.0) - math.log(2.0)


class InteractionBlock(nn.Module):
    """A continuous-filter convolution: what an atom's neighbours are, weighted by a network of their distances, is
    summed up for the atom."""

    def __init__(self, hidden: int, gaussians: int, filters: int, cutoff: float) -> None:
        super().__init__()
        self.filters = nn.Sequential(nn.Linear(gaussians, filters), ShiftedSoftplus(), nn.Linear(filters, filters))
        self.before = nn.Linear(hidden, filters, bias=False)
        self.after = nn.Linear(filters, hidden)
        self.activation = ShiftedSoftplus()
        self.mixing = nn.Linear(hidden, hidden)
        self.cutoff = cutoff

    def forward(
        self, x: torch.Tensor, edges: torch.Tensor, distances: torch.Tensor, basis: torch.Tensor
    ) -> torch.Tensor:
        """``x (atoms, hidden)``, ``edges (2, n)`` from and to atoms, ``distances (n)``, ``basis (n, gaussians)``."""
        cut = 0.5 * (torch.cos(distances * math.pi / self.cutoff) + 1.0)
        weights = self.filters(basis) * cut.view(-1, 1)
        messages = self.before(x).index_select(0, edges[0]) * weights
        target = edges[1].view(-1, 1).expand_as(messages)
        sums = messages.new_zeros(x.shape[0], messages.shape[1]).scatter_add_(0, target, messages)
        return self.mixing(self.activation(self.after(sums)))


class SchNet(nn.Module):
    """Energies of all molecules of a micro-batch; in training also the mean squared error of those that are no filling,
    which have an energy other than 0."""

    offset: torch.Tensor

    def __init__(self, options: SchNetOptions) -> None:
        super().__init__()
        hidden, self.options = options.hidden, options.of_model()
        self.place = options.ipu_of_layer(1)[0]
        self.embedding = nn.Embedding(ATOMS, hidden, padding_idx=0)
        self.register_buffer("offset", torch.linspace(0.0, options.cutoff, options.gaussians))
        self.width = options.cutoff / (options.gaussians - 1)
        self.interactions = nn.ModuleList(
            InteractionBlock(hidden, options.gaussians, hidden, options.cutoff) for _ in range(options.interactions)
        )
        self.first = nn.Linear(hidden, hidden // 2)
        self.activation = ShiftedSoftplus()
        self.last = nn.Linear(hidden // 2, 1)

    def forward(
        self, numbers: torch.Tensor, places: torch.Tensor, starts: torch.Tensor, energies: torch.Tensor | None = None
    ) -> Any:
        """``numbers (atoms)`` of the elements, ``places (atoms, 3)``, ``starts``: of the second and further molecules
        (filled up with 0), ``energies (molecules)``."""
        with poptorch.Block("Network", ipu_id=self.place):
            molecule = self._molecules(starts.long(), numbers.shape[0])
            edges, distances = self._neighbours(places.to(self.offset.dtype), molecule)
            basis = torch.exp(-0.5 / self.width**2 * (distances.view(-1, 1) - self.offset) ** 2)
            x = self.embedding(numbers.int())
            for interaction in self.interactions:
                x = x + interaction(x, edges, distances, basis)
            x = self.last(self.activation(self.first(x))).view(-1)
            out = x.new_zeros(self.options.molecules).scatter_add_(0, molecule, x)
            if energies is None:
                return out
            loss = F.mse_loss(out, energies, reduction="sum") / (energies != 0.0).to(out.dtype).sum()
            return out, poptorch.identity_loss(loss, "none")

    @staticmethod
    def _molecules(starts: torch.Tensor, atoms: int) -> torch.Tensor:
        """The molecule of each atom."""
        first = starts.new_zeros(atoms).index_fill(0, starts, 1)
        first[0] = 0
        return torch.cumsum(first, 0)

    def _neighbours(self, places: torch.Tensor, molecule: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Edges from the nearest atoms of the same molecule, and their lengths; fewer are filled up with others, at the
        distance of the cutoff, where the filters vanish."""
        distance = torch.linalg.vector_norm(places.unsqueeze(1) - places, dim=-1)
        atoms = torch.arange(len(places), dtype=molecule.dtype, device=molecule.device)
        apart = molecule.view(-1, 1) != molecule.view(1, -1)
        none = (atoms.view(-1, 1) == atoms.view(1, -1)) | apart | (distance > self.options.cutoff)
        nearest, sources = torch.topk(-distance.masked_fill(none, self.options.cutoff), self.options.neighbours)
        targets = atoms.view(-1, 1).expand_as(sources)
        return torch.vstack([sources.flatten(), targets.flatten()]), -nearest.flatten()


def model(options: SchNetOptions) -> SchNet:
    """A new model, initialised by PyTorch."""
    return SchNet(options)


def batch(options: SchNetOptions, device: str = "cpu", seed: int = 0) -> list[torch.Tensor]:
    """Random arguments of one call, molecules of equal size; on ``meta`` only their shapes."""
    calls, atoms, molecules = options.micro_batches_per_call, options.atoms, options.molecules
    if device == "meta":
        with torch.device("meta"):
            found = [torch.empty(calls * atoms, dtype=torch.int8), torch.empty(calls * atoms, 3, dtype=torch.float16)]
            found += [torch.empty(calls * molecules, dtype=torch.int16), torch.empty(calls * molecules)]
    else:
        source = torch.Generator().manual_seed(seed)
        starts = torch.arange(1, molecules) * (atoms // molecules)
        found = [
            torch.randint(1, 10, (calls * atoms,), generator=source, dtype=torch.int8),
            torch.randn(calls * atoms, 3, generator=source).half(),
            F.pad(starts, (0, 1)).to(torch.int16).repeat(calls),
            torch.randn(calls * molecules, generator=source),
        ]
    return found if options.training else found[:3]


_RUN = ModelRun(model, batch, {"qm9": SchNetOptions()}, lambda options: options.pack_molecules)
simulate, throughput = _RUN.simulate, _RUN.throughput


def validation_program(case: Case) -> Program:
    """The program of a case of ``ipuperf validate``; times are those of an epoch."""
    return replace(_RUN.validation_program(case), steps=1, runs=_RUN.options_of(case).calls)
