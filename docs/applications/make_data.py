"""Small data sets of the right shape for the vendor's applications, made from random numbers without a network.

python make_data.py NAME FOLDER
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

RANDOM = np.random.default_rng(0)


def picture(path: Path, width: int = 256, height: int = 256) -> None:
    """Write a JPEG of smooth noise."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    noise = RANDOM.integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(path)


def write(path: Path, text: str) -> None:
    """Write a text file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def images(folder: Path, count: int = 24, size: int = 256) -> None:
    """ImageNet's folders: 24 pictures for training and 8 for validation in two classes."""
    for part, many in (("train", count), ("validation", 8)):
        for number in range(many):
            picture(folder / part / f"class{number % 2}" / f"{number}.jpg", size, size)


def small_images(folder: Path) -> None:
    """The same with 1,024 pictures of 64 x 64 pixels for training."""
    images(folder, 1024, 64)


def photo(folder: Path) -> None:
    """One small picture."""
    picture(folder / "picture.jpg", 64, 64)


def coco(folder: Path) -> None:
    """Four pictures of COCO's validation, each with two boxes of random classes."""
    names = []
    for number in range(1, 5):
        name = f"images/val2017/{number:012}.jpg"
        names.append(f"./{name}")
        picture(folder / "coco" / name, 320, 240)
        boxes = [f"{RANDOM.integers(80)} {x:.3f} {y:.3f} 0.3 0.3" for x, y in RANDOM.uniform(0.2, 0.8, (2, 2))]
        write(folder / "coco" / name.replace("images", "labels").replace("jpg", "txt"), "\n".join(boxes) + "\n")
    write(folder / "coco" / "val2017.txt", "\n".join(names) + "\n")


def captions(folder: Path) -> None:
    """90 pictures with captions, and the merges of a byte-pair encoding."""
    words = ("cat", "dog", "tree", "house", "red", "blue", "small", "old")
    lines = []
    for number in range(90):
        picture(folder / "images" / f"{number}.jpg", 224, 224)
        lines.append(f"{number}.jpg\ta {' '.join(RANDOM.choice(words, 4))}")
    write(folder / "img_cap.csv", "\n".join(lines) + "\n")
    merges = ["#version: 0.2", *(f"{word[0]} {word[1]}" for word in words)]
    (folder / "bpe_simple_vocab_16e6.txt.gz").write_bytes(gzip.compress("\n".join(merges).encode()))


def reddit(folder: Path) -> None:
    """Reddit's files with 6,000 nodes, whose features say their class, in 1,500 clusters."""
    import torch
    from scipy.sparse import coo_array, save_npz
    from torch_geometric.datasets import Reddit
    from torch_geometric.loader import ClusterData

    class Striped(ClusterData):
        """METIS, which would choose the clusters, needs a compiler."""

        def _metis(self, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
            return torch.arange(num_nodes) % self.num_parts

    nodes, classes, clusters = 6000, 41, 1500
    raw = folder / "Reddit" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    labels = RANDOM.integers(0, classes, nodes)
    features = RANDOM.normal(0, 1, (nodes, 602)) + 2 * RANDOM.normal(0, 1, (classes, 602))[labels]
    kinds = RANDOM.choice([1, 2, 3], nodes, p=[0.66, 0.1, 0.24])
    np.savez(raw / "reddit_data.npz", feature=features.astype(np.float32), label=labels, node_types=kinds)
    ends = RANDOM.integers(0, nodes, (2, 20000))
    both = np.unique(np.concatenate([ends, ends[::-1]], 1), axis=1)
    save_npz(raw / "reddit_graph.npz", coo_array((np.ones(both.shape[1]), (both[0], both[1])), (nodes, nodes)))
    root = str(folder / "Reddit")
    Striped(Reddit(root)[0], clusters, save_dir=root, log=False)


def nci1(folder: Path) -> None:
    """TUDataset's files of NCI1: 1,500 graphs of 10 to 20 nodes in a ring, whose nodes' label says their class."""
    edges, graph_of, node_labels, graph_labels, first = [], [], [], [], 1
    for graph in range(1, 1501):
        size, label = int(RANDOM.integers(10, 21)), graph % 2
        ring = [(first + n, first + (n + 1) % size) for n in range(size)]
        edges += ring + [(b, a) for a, b in ring]
        graph_of += [graph] * size
        node_labels += list(np.where(RANDOM.random(size) < 0.7, label, RANDOM.integers(0, 37, size)))
        graph_labels.append(label)
        first += size
    raw = folder / "TUDataset" / "NCI1" / "raw"
    write(raw / "NCI1_A.txt", "".join(f"{a}, {b}\n" for a, b in edges))
    for name, numbers in {
        "graph_indicator": graph_of,
        "node_labels": node_labels,
        "graph_labels": graph_labels,
    }.items():
        write(raw / f"NCI1_{name}.txt", "".join(f"{number}\n" for number in numbers))


def qm9(folder: Path) -> None:
    """QM9's processed molecules: 130,000 with five or six atoms."""
    import torch

    raw = folder / "qm9" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    molecules = []
    for number in range(130_000):
        atoms = 5 + number % 2
        z = torch.from_numpy(RANDOM.choice([1, 6, 7, 8, 9], atoms))
        molecules.append(
            {
                "x": torch.zeros(atoms, 11),
                "z": z,
                "pos": torch.from_numpy(RANDOM.normal(0, 1.5, (atoms, 3)).astype(np.float32)),
                "edge_index": torch.zeros(2, 0, dtype=torch.long),
                "edge_attr": torch.zeros(0, 4),
                "y": z.float().mean() * torch.ones(1, 19),
                "name": f"molecule{number}",
                "idx": number,
            }
        )
    torch.save(molecules, raw / "qm9_v3.pt")


def fastpitch(folder: Path) -> None:
    """Twelve samples in the program's own cache, with the files that its command line names."""
    (folder / "cached_data").mkdir(parents=True, exist_ok=True)
    for number in range(12):
        letters = int(RANDOM.integers(20, 40))
        durations = RANDOM.integers(2, 6, letters)
        mel = RANDOM.normal(-5, 2, (80, int(durations.sum()))).astype(np.float32)
        text, pitch = RANDOM.integers(1, 148, letters), RANDOM.normal(0, 1, letters).astype(np.float32)
        sample = np.empty(6, object)
        sample[:] = [text, mel, letters, durations, pitch, None]
        np.save(folder / "cached_data" / f"{number}.npy", sample)
    write(folder / "filelist.txt", "mel.pt|durations.pt|pitch.pt|words\n")
    write(folder / "pitch.json", '{"mean": 0.0, "std": 1.0}')


def fashion(folder: Path) -> None:
    """The files of FashionMNIST, with 640 pictures for training and 64 for validation."""
    for part, count in (("train", 640), ("t10k", 64)):
        labels = RANDOM.integers(0, 10, count).astype(np.uint8)
        pictures = RANDOM.integers(0, 64, (count, 28, 28), np.uint8) + 19 * labels[:, None, None]
        for kind, array in (("images-idx3", pictures), ("labels-idx1", labels)):
            path = folder / "FashionMNIST" / "raw" / f"{part}-{kind}-ubyte"
            path.parent.mkdir(parents=True, exist_ok=True)
            head = np.array([0x800 + array.ndim, *array.shape], ">u4")
            path.write_bytes(head.tobytes() + array.astype(np.uint8).tobytes())


def distilbert(folder: Path) -> None:
    """A DistilBERT of one layer with random weights and a tokenizer of letters, as Transformers reads it."""
    from transformers import DistilBertConfig, DistilBertModel, DistilBertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 123))]
    write(folder / "vocab.txt", "\n".join([*words, *(f"##{word}" for word in words[5:])]) + "\n")
    DistilBertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    DistilBertModel(DistilBertConfig(dim=64, hidden_dim=128, n_heads=2, n_layers=1)).save_pretrained(folder)


SETS = {
    each.__name__: each
    for each in (images, small_images, photo, coco, captions, reddit, nci1, qm9, fastpitch, fashion, distilbert)
}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SETS:
        sys.exit(f"usage: python make_data.py NAME FOLDER; NAME: {', '.join(SETS)}")
    SETS[sys.argv[1]](Path(sys.argv[2]))
