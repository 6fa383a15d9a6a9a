"""Registers the image models with timm: `import timm_plugin`, then `timm.create_model("sret_tl")`."""

from timm_plugin import repairs

repairs.apply()

from timm_plugin import deep, recursive_deit, recursive_mixer, ringformer_vit, sret  # noqa: E402

FAMILIES = (ringformer_vit, sret, recursive_deit, recursive_mixer, deep)
MODELS = tuple(name for family in FAMILIES for name in family.default_cfgs)
"""Every registered name."""

__all__ = ["FAMILIES", "MODELS"]
