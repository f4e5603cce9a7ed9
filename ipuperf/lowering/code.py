"""Always-live memory: what code, vertex state and packet headers cost on a tile.

PopLibs and Poplar publish no size model; the figures below are those of public Poplar reports
(``docs/reference/memory.md`` 2: stack 3,168 B, control 700 B, vertex code 140 B, internal exchange
50 B and host exchange 289 B per tile for a minimal program; 4 B per exchange instruction, 64 words per send; 8 B of
state per vertex and 4 B per edge). The fixed instructions of a step and of an exchange and the bytes of a vertex
type were calibrated once, globally, against the always-live figures of the remote-variables tutorial
(``POPXL5-MEM-*`` in ``docs/reference/measurements.csv``); see ``docs/accuracy.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .tilevector import TileVector

#: Minimal program on a tile (``docs/reference/memory.md`` 2.1).
STACK_BYTES = 3168
BASE_CONTROL_BYTES = 700
BASE_HOST_EXCHANGE_BYTES = 289

#: One instruction.
INSTRUCTION_BYTES = 4

#: Longest send: 64 words of 4 bytes.
SEND_BYTES = 256

#: Sync, calls and delays around one exchange on a tile, in instructions (calibrated).
EXCHANGE_FIXED_INSTRUCTIONS = 8

#: Control code of one program step on a tile, in instructions (calibrated).
STEP_INSTRUCTIONS = 2

#: Packet header of one host or Streaming Memory packet of up to 1024 bytes.
PACKET_HEADER_BYTES = 16
PACKET_BYTES = 1024

#: Code of one vertex type on a tile that runs it (calibrated; AMP and reductions are larger).
VERTEX_CODE_BYTES = 240
LARGE_VERTEX_CODE_BYTES = 660
LARGE_VERTICES = ("poplin::", "popops::Reduce", "popnn::")

#: State of the vertices of one compute set on a tile: one vertex of 8 bytes with 4 edges of 4 bytes.
VERTEX_STATE_BYTES = 24

#: State of the vertex of one on-tile copy: 8 bytes, and an edge of 4 bytes for each end.
COPY_STATE_BYTES = 16

#: Set-up of one on-tile copy: 80 to 160 cycles (``docs/reference/cycles.md`` 4.5).
COPY_SETUP_CYCLES = 120


@dataclass
class CodeBytes:
    """Always-live bytes by PopVision category; each a dense vector over tiles or a number for every tile."""

    parts: dict[str, np.ndarray | int] = field(default_factory=dict)

    def __add__(self, other: CodeBytes) -> CodeBytes:
        parts = dict(self.parts)
        for name, value in other.parts.items():
            parts[name] = parts.get(name, 0) + value
        return CodeBytes(parts)


def _instructions(share: TileVector, sent: int | None = None) -> np.ndarray:
    """Exchange instructions per tile for receiving ``share`` bytes: sends, receive pointers, fixed part.

    ``sent``: bytes that each tile sends, of which every receiver takes all in one piece (a broadcast); None: as much as
    it receives, in pieces of one send.
    """

    def count(received: np.ndarray) -> np.ndarray:
        moves = 2 * -(-received // SEND_BYTES)
        if sent is not None:
            moves = np.minimum(moves, -(-sent // SEND_BYTES) + -(-received // max(SEND_BYTES, sent)))
        return np.where(received > 0, EXCHANGE_FIXED_INSTRUCTIONS + moves, EXCHANGE_FIXED_INSTRUCTIONS // 2)

    return share.map(count).dense()


def exchange_code(share: TileVector, sent: int | None = None) -> CodeBytes:
    """An internal exchange in which each tile receives ``share`` bytes and sends as much, or ``sent`` bytes that
    several tiles receive: the exchange is a broadcast, and each tile's part of it is sent once."""
    return CodeBytes(
        {
            "internalExchangeCode": _instructions(share, sent) * INSTRUCTION_BYTES,
            "controlCode": STEP_INSTRUCTIONS * INSTRUCTION_BYTES,
        }
    )


def compute_code() -> CodeBytes:
    """A compute set on each tile that has a part of it: its vertices' state and the call in the control code."""
    return CodeBytes({"vertexInstanceState": VERTEX_STATE_BYTES, "controlCode": STEP_INSTRUCTIONS * INSTRUCTION_BYTES})


def _packets(share: TileVector) -> np.ndarray:
    return -(-share.dense() // PACKET_BYTES)


def host_exchange_code(share: TileVector) -> CodeBytes:
    """A stream copy of ``share`` bytes per tile: begin, mid and end steps, packets with headers."""
    packets = _packets(share)
    return CodeBytes(
        {
            "hostExchangeCode": np.where(packets > 0, EXCHANGE_FIXED_INSTRUCTIONS + 2 * packets, 2) * INSTRUCTION_BYTES,
            "hostExchangePacketHeader": packets * PACKET_HEADER_BYTES,
            "controlCode": 3 * STEP_INSTRUCTIONS * INSTRUCTION_BYTES,
        }
    )


def remote_exchange_code(share: TileVector) -> CodeBytes:
    """A remote transfer of ``share`` bytes per tile."""
    packets = _packets(share)
    return CodeBytes(
        {
            "hostExchangeCode": np.where(packets > 0, EXCHANGE_FIXED_INSTRUCTIONS + 2 * packets, 2) * INSTRUCTION_BYTES,
            "hostExchangePacketHeader": packets * PACKET_HEADER_BYTES,
            "controlCode": 3 * STEP_INSTRUCTIONS * INSTRUCTION_BYTES,
        }
    )


def collective_code(chunk: TileVector, size: int, rounds: int) -> CodeBytes:
    """Ring rounds in which each tile sends and receives its share of a chunk."""
    share = chunk.times(size)
    return CodeBytes(
        {
            "globalExchangeCode": rounds * _instructions(share) * INSTRUCTION_BYTES,
            "globalExchangePacketHeader": rounds * _packets(share) * PACKET_HEADER_BYTES,
            "controlCode": rounds * STEP_INSTRUCTIONS * INSTRUCTION_BYTES,
        }
    )


def vertex_code_bytes(vertex: str) -> int:
    """Code of one vertex type on a tile."""
    return LARGE_VERTEX_CODE_BYTES if vertex.startswith(LARGE_VERTICES) else VERTEX_CODE_BYTES
