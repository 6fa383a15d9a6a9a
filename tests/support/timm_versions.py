"""Runs every image model on other versions of timm, each installed into its own folder.

Usage::

    python -m tests.support.timm_versions                   # the oldest supported version, one in between, the newest
    python -m tests.support.timm_versions 1.0.22 ../timm    # a version, and a checkout of timm
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
VERSIONS = ("1.0.20", "1.0.26", "")  # the empty one is the newest release


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


def run_on(version: str) -> None:
    """Installs a version, or uses a checkout, and runs :func:`check` on it.

    Raises:
        subprocess.CalledProcessError: if it cannot be installed, or a model fails.
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


if __name__ == "__main__":
    for wanted in sys.argv[1:] or VERSIONS:
        run_on(wanted)
