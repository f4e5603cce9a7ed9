"""Always-live memory: the bytes of code, vertex state and packet headers on a tile.

PopLibs and Poplar publish no size model. This module counts steps, exchanges, packets and vertex types. The bytes of
each are figures of the chip (``chip.code.*`` of its data file, with source and kind): some from public Poplar reports,
four calibrated (see ``docs/accuracy/calibrated.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from ipuperf.machine import Chip
from ipuperf.machine.model import CodeSizes

from .tilevector import TileVector

#: Vertex types whose code is large.
LARGE_VERTICES = ("poplin::", "popops::Reduce", "popnn::")


@dataclass
class CodeBytes:
    """Always-live bytes by PopVision category: a dense vector over tiles, or one number for every tile.

    A sum shares vectors with its terms, so vectors must not be changed.
    """

    parts: dict[str, np.ndarray | int] = field(default_factory=dict)

    def __add__(self, other: CodeBytes) -> CodeBytes:
        parts = dict(self.parts)
        for name, value in other.parts.items():
            parts[name] = parts[name] + value if name in parts else value
        return CodeBytes(parts)


CodeOf = Mapping[int, TileVector]
"""Bytes of code per tile on each IPU."""


def minimal_code(chip: Chip) -> CodeBytes:
    """Memory of a minimal program, which is on every tile."""
    sizes = chip.code
    return CodeBytes(
        {
            "stack": sizes.stack_bytes,
            "controlCode": sizes.control_bytes,
            "hostExchangeCode": sizes.host_exchange_bytes,
        }
    )


def _steps(chip: Chip, count: int) -> int:
    """Bytes of control code for ``count`` steps."""
    return count * chip.code.step_instructions * chip.code.instruction_bytes


def _instructions(chip: Chip, share: TileVector, sent: int | None = None) -> np.ndarray:
    """Bytes of exchange instructions per tile for receiving ``share`` bytes: sends, receive pointers, fixed part.

    ``sent``: bytes that each tile sends in a broadcast; every receiver takes them in one piece. With None a tile sends
    as much as it receives, in pieces of one send.
    """
    send, fixed = chip.code.send_bytes, chip.code.exchange_instructions

    def count(received: np.ndarray) -> np.ndarray:
        # A send and a receive pointer for each piece.
        moves = 2 * -(-received // send)
        if sent is not None:
            moves = np.minimum(moves, -(-sent // send) + -(-received // max(send, sent)))
        return np.where(received > 0, fixed + moves, fixed // 2)

    return share.map(count).dense() * chip.code.instruction_bytes


def exchange_code(chip: Chip, share: TileVector, sent: int | None = None) -> CodeBytes:
    """Code of an internal exchange in which each tile receives ``share`` bytes and sends as much.

    With ``sent`` it is a broadcast: each tile sends its ``sent`` bytes once, and several tiles receive them.
    """
    return CodeBytes({"internalExchangeCode": _instructions(chip, share, sent), "controlCode": _steps(chip, 1)})


def compute_code(chip: Chip) -> CodeBytes:
    """Code of a compute set on every tile: the call in the control code, and the state of a vertex."""
    return CodeBytes({"vertexInstanceState": chip.code.vertex_state_bytes, "controlCode": _steps(chip, 1)})


def call_code(chip: Chip, calls: int, operands: np.ndarray) -> CodeBytes:
    """Code of calls of functions: each is one copy of all its operands, and the call.

    Each copy has a vertex on the tiles with a part of the operand. ``operands``: number of these parts per tile.
    """
    return CodeBytes(
        {"controlCode": _steps(chip, 2 * calls), "vertexInstanceState": operands * chip.code.copy_state_bytes}
    )


def _packets(chip: Chip, share: TileVector) -> np.ndarray:
    return -(-share.dense() // chip.code.packet_bytes)


def host_exchange_code(chip: Chip, share: TileVector) -> CodeBytes:
    """Code of a stream copy or remote transfer of ``share`` bytes per tile.

    It has begin, mid and end steps, and packets with headers.
    """
    instructions, headers = _host_exchange(chip.code, share)
    return CodeBytes(
        {
            "hostExchangeCode": instructions,
            "hostExchangePacketHeader": headers,
            "controlCode": _steps(chip, 3),
        }
    )


@lru_cache(maxsize=256)
def _host_exchange(sizes: CodeSizes, share: TileVector) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of instructions and of packet headers per tile, as read-only vectors.

    They are cached because many transfers move tensors with equal layouts.
    """
    packets = -(-share.dense() // sizes.packet_bytes)
    instructions = np.where(packets > 0, sizes.exchange_instructions + 2 * packets, 2) * sizes.instruction_bytes
    headers = packets * sizes.packet_header_bytes
    instructions.flags.writeable = headers.flags.writeable = False
    return instructions, headers


def global_exchange_code(chip: Chip, share: TileVector, ways: int = 1) -> CodeBytes:
    """Code of ``ways`` exchanges between IPUs in which each tile sends and receives ``share`` bytes.

    The rounds of a ring are a loop around one exchange. Every replica runs the same program; the chunk it sends is an
    index that it increments (PopLibs ``lib/popops/CollectivesProgram.hpp``).
    """
    return CodeBytes(
        {
            "globalExchangeCode": ways * _instructions(chip, share),
            "globalExchangePacketHeader": ways * _packets(chip, share) * chip.code.packet_header_bytes,
            "controlCode": _steps(chip, ways),
        }
    )


def vertex_code_bytes(chip: Chip, vertex: str) -> int:
    """Code of one vertex type on a tile."""
    return chip.code.large_vertex_bytes if vertex.startswith(LARGE_VERTICES) else chip.code.vertex_bytes
