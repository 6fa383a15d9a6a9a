"""Registers the image models with timm: `import timm_plugin`, then `timm.create_model("sret_tl")`."""

from timm_plugin import ringformer_vit, sret

__all__ = ["ringformer_vit", "sret"]
