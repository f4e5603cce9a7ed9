"""The exception of the datasets room."""

from __future__ import annotations


class DatasetError(RuntimeError):
    """A data file is damaged or missing, or cannot be downloaded.

    The message is one statement that names the file or the folders, what was found there and what was expected. It is a
    ``RuntimeError`` because torchvision raises that when a data set is not on disk.
    """
