"""The kinds of steps in time, one module per kind; importing this package registers them (:mod:`..kinds`)."""

from . import (
    collective,
    external_sync,
    host_exchange,
    inter_ipu_copy,
    local,
    remote_transfer,
    stream_copy,
    tile_set_copy,
)

__all__ = [
    "collective",
    "external_sync",
    "host_exchange",
    "inter_ipu_copy",
    "local",
    "remote_transfer",
    "stream_copy",
    "tile_set_copy",
]
