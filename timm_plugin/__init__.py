"""Registers the image models with timm: `import timm_plugin`, then `timm.create_model("sret_tl")`.

That is all; `timm_plugin.repairs.apply()` also repairs timm's reading of images and its checkpoints.
"""

from timm_plugin import baselines, recursive_deit, recursive_mixer, repairs, ringformer_vit, sret  # noqa: F401

FAMILIES = tuple(module for module in list(vars().values()) if hasattr(module, "default_cfgs"))
MODELS = tuple(name for family in FAMILIES for name in family.default_cfgs)
"""Every registered name."""

__all__ = ["FAMILIES", "MODELS", "repairs"]
