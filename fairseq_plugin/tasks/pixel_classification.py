"""Images as sequences of grey pixels, one token each; the target at the last pixel is the class.

Source: Kausik, recurrent transformers, text of July 2025, "Block recurrence with forget" and Table 4, after the image
task of Long Range Arena (arXiv:2011.04006): CIFAR-10 in grey, 1,024 tokens of 256 levels, ten classes, no augmentation.
The paper validates on the test images.
"""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import register_task
from omegaconf import MISSING
from torch import Tensor

from fairseq_plugin.build import unpadded_dictionary
from fairseq_plugin.options import option
from fairseq_plugin.tasks.answers import AnswerDataset, AnswerTask
from recurrence.greys import eight_bits, has_16_bits

LEVELS = 256  # of grey
CIFAR10 = "cifar-10-batches-py"


@dataclass
class PixelClassificationConfig(FairseqDataclass):
    """Options of the task."""

    data: str = option(
        MISSING, f"folder of {CIFAR10} (CIFAR-10), or of images in train/CLASS and test/CLASS or val/CLASS"
    )


@register_task("pixel_classification", dataclass=PixelClassificationConfig)
class PixelClassificationTask(AnswerTask):
    """Classifies images of one size by a language model's output at the last pixel.

    The subset `train` is the training images, `valid` those in val, and every other subset those in test. If the folder
    has only one of val and test, as CIFAR-10, it is both.

    Raises:
        ValueError: if the folder holds no such images, or the images differ in size.
    """

    def __init__(self, cfg: PixelClassificationConfig, **kwargs):
        super().__init__(cfg, **kwargs)
        images = load_images(cfg.data, "train")
        self.size = images[0][0].size
        # Where the language models look for the length of their texts, as in fairseq's own task.
        self.args = Namespace(tokens_per_sample=self.size[0] * self.size[1])
        self.class_names = images.classes
        self.symbols, self.answers = unpadded_dictionary(LEVELS), unpadded_dictionary(len(images.classes))

    def build_model(self, cfg, from_checkpoint: bool = False):
        """Raises ValueError if the output matrix is the embedding of the grey levels."""
        if getattr(cfg, "share_decoder_input_output_embed", False):
            rule = "must be recurrent_lm with --no-share-decoder-input-output-embed, because the outputs are not pixels"
            raise ValueError(f"--arch={getattr(cfg, 'arch', None) or cfg._name}: {rule}")
        return super().build_model(cfg, from_checkpoint)

    def load_dataset(self, split: str, **unused) -> None:
        """Loads the images of a subset. Raises ValueError if their classes are not those of the training images."""
        images = load_images(self.cfg.data, split)
        if images.classes != self.class_names:
            raise ValueError(f"data={self.cfg.data}: the classes in {split} must be those in train")
        self.datasets[split] = AnswerDataset(
            len(images),
            self.args.tokens_per_sample,
            self.answers.pad(),
            lambda index: self.text(*images[index]),
            shuffle=split == "train",
        )

    def text(self, image, label: int) -> tuple[Tensor, Tensor]:
        """The pixels of an image row by row (T,), and the target (T,): its class at the last pixel.

        Raises:
            ValueError: if the image has another size than the first one.
        """
        if image.size != self.size:
            raise ValueError(f"data={self.cfg.data}: an image of {image.size}: must be {self.size}, as the first one")
        pixels = torch.from_numpy(np.array(image.convert("L"), dtype=np.int64)).flatten()
        target = torch.full_like(pixels, self.answers.pad())
        target[-1] = label
        return pixels, target


FOLDERS = {"train": ["train"], "valid": ["val", "test"]}  # where the images of a subset are, the first that is there
OF_OTHERS = ["test", "val"]  # of any other subset


def load_images(folder: str, split: str):
    """torchvision's data set of (image, class) of a subset: "train", "valid", or another name for the test images.

    Raises:
        ValueError: if the folder holds neither CIFAR-10 nor folders of images, or they are damaged or empty.
    """
    from torchvision import datasets  # not needed by any other task

    try:
        if (Path(folder) / CIFAR10).is_dir():
            return datasets.CIFAR10(folder, train=split == "train")
        for name in FOLDERS.get(split, OF_OTHERS):
            path = Path(folder) / name
            if path.is_dir():
                return datasets.ImageFolder(str(path), loader=read_image)
    except (FileNotFoundError, RuntimeError) as error:  # a class without images, a damaged CIFAR-10
        raise ValueError(f"data={folder}: {error}") from None
    raise ValueError(f"data={folder}: must hold {CIFAR10}, or images in train/CLASS and test/CLASS or val/CLASS")


def read_image(path: str):
    """The image in a file, as RGB; greys of 16 bits become the nearest of 8 (PIL makes all above 255 white).

    Raises:
        ValueError: if its greys have more bits, whose range is not known.
    """
    from PIL import Image  # as torchvision

    with Image.open(path) as image:
        if has_16_bits(image):
            return Image.fromarray(eight_bits(image)).convert("RGB")
        if image.mode in ("I", "F"):
            raise ValueError(f"{path}: has greys of 32 bits: must have 8 or 16")
        return image.convert("RGB")
