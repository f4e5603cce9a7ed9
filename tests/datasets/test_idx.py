"""IDX files: what is written by hand is read back, and every kind of damage is named."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ipuperf.datasets import DatasetError, read_idx

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    header = struct.pack(">HBB", 0, code, array.ndim) + b"".join(struct.pack(">I", size) for size in array.shape)
    return header + b"".join(struct.pack(f">{array.dtype.char}", value) for value in array.ravel().tolist())


def small_arrays() -> st.SearchStrategy[np.ndarray]:
    shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4)
    dtypes = st.sampled_from([np.dtype(code) for code in CODES])
    return dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes))


@settings(max_examples=60)
@given(array=small_arrays(), packed=st.booleans())
def test_reads_back_what_was_written(array: np.ndarray, packed: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = idx_bytes(array)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(gzip.compress(content) if packed else content)
    read = read_idx(path)
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    assert read.flags.writeable
    np.testing.assert_array_equal(read, array)


GOOD = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "0 bytes found"),
        (b"\0\0\x08", "3 bytes found"),
        (b"\0\1" + GOOD[2:], "0x00010803"),
        (b"\0\0\x0a\3" + GOOD[4:], "0x00000a03"),
        (b"\0\0\x08\0", "0 dimensions found"),
        (b"\0\0\x08\xff", "255 dimensions found"),
        (GOOD[:13], "9 bytes of sizes found, expected 12"),
        (GOOD[:-1], "23 bytes of elements found, expected 24"),
        (GOOD[:16], "0 bytes of elements found, expected 24"),
        (GOOD + b"x", "bytes found after the last element, expected exactly 24"),
        (struct.pack(">HBBIII", 0, 8, 3, *[2**32 - 1] * 3) + b"abc", "3 bytes of elements found"),
        (b"<html>404</html>", "magic number 0x3c68746d"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damage_is_named(content: bytes, said: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DatasetError) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "expected" in str(caught.value)


@settings(max_examples=80)
@given(cut=st.integers(0, 10_000), packed=st.booleans())
def test_any_cut_is_an_error(cut: int, packed: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = gzip.compress(GOOD) if packed else GOOD
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(content[: cut % len(content)])
    with pytest.raises(DatasetError, match="file"):
        read_idx(path)


def test_flipped_bits_in_a_gzip_stream_are_an_error(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(GOOD))
    path = tmp_path / "file.gz"
    for position in range(10, len(content)):  # from the end of the gzip header on
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(DatasetError, match="gzip stream is damaged"):
            read_idx(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such file"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(DatasetError, match="cannot be read"):
        read_idx(tmp_path)
