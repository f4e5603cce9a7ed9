"""Small data sets of the right shape for the vendor's applications, made from random numbers without a network.

python make_data.py images FOLDER        # mae, swin, dino: FOLDER/train and FOLDER/validation, two classes
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

RANDOM = np.random.default_rng(0)


def picture(path: Path, width: int = 256, height: int = 256) -> None:
    """Write a JPEG of smooth noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = RANDOM.integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(path)


def images(folder: Path) -> None:
    """ImageNet's folders: 64 pictures for training and 16 for validation in two classes."""
    for part, count in (("train", 64), ("validation", 16)):
        for number in range(count):
            picture(folder / part / f"class{number % 2}" / f"{number}.jpg")


SETS = {"images": images}

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    SETS[name](Path(folder))
