"""Room ``datasets``: IDX files, MNIST, scikit-learn's digits, a stand-in for torchvision, and local files for Keras.

The room imports no other room of ipuperf. torch and scikit-learn are imported only on use.
"""

from __future__ import annotations

from ipuperf.tools.datasets.digits import load_digits_28x28
from ipuperf.tools.datasets.idx import read_idx
from ipuperf.tools.datasets.mnist import find_mnist, load_mnist
from ipuperf.tools.datasets.torchvision_standin import install_standin, uninstall_standin
from ipuperf.tools.errors import DatasetError

__all__ = [
    "DatasetError",
    "find_mnist",
    "install_standin",
    "load_digits_28x28",
    "load_mnist",
    "read_idx",
    "uninstall_standin",
]
