"""Registers the image models with timm: `import timm_plugin`, then `timm.create_model("sret_tl")`.

That is all; `timm_plugin.repairs.apply()` also repairs timm's reading of images and its checkpoints.
"""

from timm_plugin import owf_vit, plain_vit, recursive_deit, recursive_mixer, repairs, ringformer_vit, sret, uit

FAMILIES = (ringformer_vit, uit, owf_vit, plain_vit, recursive_deit, recursive_mixer, sret)
MODELS = tuple(name for family in FAMILIES for name in family.default_cfgs)
"""Every registered name."""

__all__ = ["FAMILIES", "MODELS", "repairs"]
