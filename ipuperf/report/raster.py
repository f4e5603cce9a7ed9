"""Turn slices into pixels before drawing, so that the cost of a figure does not depend on the length of the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ipuperf.trace import Window


class Raster:
    """The covered fraction of each pixel, by row. Add slices in any number of pieces, then read :meth:`fractions`.

    ``rows`` is the number of rows, and ``window`` the stretch of time (cycles, half open) that ``width`` pixels show.
    A value is the exact average over the pixel and not a sample at its centre, so no slice is too short to be seen.
    """

    def __init__(self, rows: int, window: Window, width: int) -> None:
        self.rows, self.window, self.width = rows, window, width
        self._slope = np.zeros(rows * (width + 2))

    def add(self, row: np.ndarray, start: np.ndarray, dur: np.ndarray, share: np.ndarray | float = 1.0) -> None:
        """Add slices, given by row index, start and duration in cycles, and the share of that time that counts.

        Parts outside of the window are left out.
        """
        scale = self.width / (self.window[1] - self.window[0])
        for edge, sign in ((start, 1.0), (start + dur, -1.0)):
            # The integral over a pixel of "the slice has begun" is a ramp from 0 to 1 within the pixel of its edge.
            place = np.clip((edge - self.window[0]) * scale, 0.0, float(self.width))
            pixel = np.minimum(place.astype(np.int64), self.width)
            within = place - pixel
            at = np.asarray(row, dtype=np.int64) * (self.width + 2) + pixel
            self._slope += sign * np.bincount(at, weights=(1.0 - within) * share, minlength=len(self._slope))
            self._slope += sign * np.bincount(at + 1, weights=within * share, minlength=len(self._slope))

    def cover(self, row: np.ndarray, pixel: np.ndarray, fraction: np.ndarray) -> None:
        """Add to the covered fractions of single pixels."""
        at = np.asarray(row, dtype=np.int64) * (self.width + 2) + pixel
        self._slope += np.bincount(at, weights=fraction, minlength=len(self._slope))
        self._slope -= np.bincount(at + 1, weights=fraction, minlength=len(self._slope))

    def fractions(self) -> np.ndarray:
        """The covered fraction of each pixel, of shape (rows, width): 1 if a slice fills it, more if slices overlap."""
        covered = np.cumsum(self._slope.reshape(self.rows, self.width + 2), axis=1)[:, : self.width]
        # Rounding errors of the running sum must not show as colour.
        return np.where(covered < 1e-9, 0.0, covered)


def colours(names: Sequence[str], palette: Mapping[str, str]) -> np.ndarray:
    """RGB of each name as uint8, shape (names, 3)."""
    text = [palette[name].lstrip("#") for name in names]
    return np.array([[int(code[i : i + 2], 16) for i in (0, 2, 4)] for code in text], dtype=np.uint8).reshape(-1, 3)


def stacked(fractions: np.ndarray, rgb: np.ndarray, height: int, background: int = 255) -> np.ndarray:
    """The image of a strip in which the parts of each column are stacked from the bottom, as high as their fraction.

    ``fractions`` has the shape (parts, width) and ``rgb`` (parts, 3). The image is uint8 of shape (height, width, 3).
    Columns that add up to more than 1 (overlapping slices) are scaled to fit.
    """
    total = np.maximum(fractions.sum(axis=0), 1.0)
    tops = np.cumsum(fractions / total, axis=0)
    # The middle of each row of pixels, from top to bottom.
    level = (height - np.arange(height) - 0.5) / height
    index = (tops[:, None, :] < level[None, :, None] - 1e-9).sum(axis=0)
    palette = np.concatenate([rgb, np.full((1, 3), background, dtype=np.uint8)])
    image: np.ndarray = palette[index]
    return image
