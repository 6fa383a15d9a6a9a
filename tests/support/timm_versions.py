"""Runs every image model on other versions of timm, each installed into its own folder, and the scripts of a checkout.

Usage::

    python -m tests.support.timm_versions                   # the oldest supported version, one in between, the newest
    python -m tests.support.timm_versions 1.0.22 ../timm    # a version, and a checkout of timm with its scripts
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.cli import REPOSITORY

VERSIONS = ("1.0.20", "1.0.26", "")  # the empty one is the newest release
# timm's scripts that build a model, as timm_plugin.run starts them; the first one writes RUN.
MODEL = "--model sret_nano --num-classes 3"
LOADER = "--device cpu --workers 1 --batch-size 4"
SCRIPTS = (
    f"train.py IMAGES {MODEL} {LOADER} --img-size 64 --epochs 1 --output OUT --experiment run",
    f"validate.py IMAGES {MODEL} {LOADER} --img-size 64 --split val --checkpoint RUN/last.pth.tar",
    f"inference.py IMAGES/val/red {MODEL} {LOADER} --checkpoint RUN/last.pth.tar --results-dir OUT",
    f"benchmark.py {MODEL} --device cpu --batch-size 2 --bench both --num-bench-iter 5 --num-warm-iter 1",
    f"onnx_export.py OUT/model.onnx {MODEL} --checkpoint RUN/last.pth.tar",
)


def check() -> None:
    """Tests every model on the imported timm: forward, features, another classifier and size, the meta device."""
    import timm
    import torch

    from tests.support import vision

    for name in vision.MODELS:
        model = vision.fresh(name).eval()
        images = vision.images(model)
        assert model(images).shape == (2, vision.CLASSES), name
        assert vision.fresh(name, features_only=True).eval()(images), name
        model.reset_classifier(3)
        assert model(images).shape == (2, 3), name
        if hasattr(model, "set_input_size"):
            model.set_input_size([2 * side for side in model.patch_embed.img_size])
            assert model(vision.images(model)).shape == (2, 3), name
        again = timm.create_model(name, **vision.arguments(name), device="meta").to_empty(device="cpu")
        again.init_weights()
        assert torch.isfinite(again.eval()(images)).all(), name
    print(f"timm {timm.__version__}: {len(vision.MODELS)} models work")


def run_scripts(checkout: Path) -> None:
    """Runs the scripts of a checkout on generated images.

    Raises:
        subprocess.CalledProcessError: if one fails.
    """
    from tests.support.image_training import write_images

    with tempfile.TemporaryDirectory() as folder:
        places = {"IMAGES": f"{folder}/images", "OUT": folder, "RUN": f"{folder}/run"}
        write_images(Path(places["IMAGES"]))
        for command in SCRIPTS:
            script, *words = re.sub("IMAGES|OUT|RUN", lambda name: places[name[0]], command).split()
            run = (sys.executable, "-W", "ignore", "-m", "timm_plugin.run", checkout / script, *words)
            subprocess.run(run, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
            print(f"{script} of {checkout} works", flush=True)


def run_on(version: str) -> None:
    """Installs a version, or uses a checkout with its scripts, and runs :func:`check` on it.

    Raises:
        subprocess.CalledProcessError: if it cannot be installed, or a model or a script fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        if Path(version).is_dir():
            Path(folder, "timm").symlink_to(Path(version, "timm").resolve())
        else:
            wanted = f"timm=={version}" if version else "timm"
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, wanted)
            subprocess.run(pip, check=True)
        script = "from tests.support.timm_versions import check; check()"
        environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{REPOSITORY}"}
        subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, env=environment, cwd=folder)
        if Path(version, "train.py").is_file():
            run_scripts(Path(version).resolve())


if __name__ == "__main__":
    for wanted in sys.argv[1:] or VERSIONS:
        run_on(wanted)
