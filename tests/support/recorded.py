"""Checkpoints of the published implementations with their recorded outputs, and our models of them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fairseq_plugin.published as texts
import timm_plugin.published as images
from tests.support.golden import golden

# File -> the published system.
TRANSLATION = {f"ringformer_translation_{name}": "ringformer" for name in ("ring", "ring_learnedpos", "ring_bias")}
TRANSLATION |= {f"ringformer_translation_{name}": name for name in ("universal", "vanilla")}
TRANSLATION |= {"ringformer_translation_owf": "one_wide_ffn"}
TAKASE = ("vanilla", "sequence", "cycle", "cycle_rev", "admin_profile", "admin_forward")
TRANSLATION |= {f"takase_{name}": "takase" for name in TAKASE}
ILR = [f"{position}_map{reuse}" for position in ("rope", "alibi", "learned", "nope") for reuse in ("211", "123")]
ILR += [f"{position}_block2" for position in ("rope", "alibi", "learned", "nope")]
ILR += ["rope_map111", "nope_map211_inject", "rope_block3_noinject", "alibi_heads6_map211"]
LANGUAGE = {f"ilr_{name}": "ilr" for name in ILR}
LANGUAGE |= dict.fromkeys(["kausik_rec_1layer", "kausik_rec_2layer", "kausik_regular_2layer"], "kausik")
IMAGES = {
    "ringformer_vision_ring": "ringformer_vit",
    "ringformer_vision_uit_static": "uit",
    "ringformer_vision_uit_learnable": "uit",
    "ringformer_vision_owf": "owf_vit",
    "ringformer_vision_vit": "vit",
    "sret_sliced": "sret",
    "sret_unsliced": "sret",
}
SYSTEM_OF = TRANSLATION | LANGUAGE | IMAGES
# Tolerance by the dtype of the recorded outputs.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}


def recorded(name: str) -> tuple[dict, tuple[Tensor, ...], Tensor]:
    """The file, the model's inputs, and a mask of the outputs to compare (B,) or (B, T)."""
    file = golden(name)
    inputs = file["inputs"]
    if name in IMAGES:
        return file, (inputs["image"],), torch.ones(len(inputs["image"]), dtype=torch.bool)
    if name in LANGUAGE:
        tokens = inputs.get("input_ids", inputs.get("idx"))
        return file, (tokens,), torch.ones_like(tokens, dtype=torch.bool)
    pad = file["meta"]["config"]["pad"]
    source = inputs.get("src", inputs.get("src_tokens"))
    target = inputs.get("trg", inputs.get("prev_output_tokens"))
    return file, (source, source.ne(pad).sum(1), target), target.ne(pad)


def load(name: str, file: dict, **changes: Tensor) -> nn.Module:
    """Our model with a file's weights; `changes` replaces some of them."""
    system, weights, config = SYSTEM_OF[name], {**file["state_dict"], **changes}, file["meta"]["config"]
    if name in IMAGES:
        model = images.from_published(system, weights, config)
        slots = [key for key, _ in model.named_buffers() if key.endswith("slices.permutation")]
        for key, permutation in zip(slots, file["inputs"].get("perms", ()), strict=True):
            model.get_buffer(key).copy_(permutation)
        return model
    return texts.from_published(system, weights, config)


def published(name: str, model: nn.Module, file: dict) -> dict[str, Tensor]:
    """Our model's weights under the published names."""
    if name in IMAGES:
        return images.to_published(SYSTEM_OF[name], model)
    return texts.to_published(SYSTEM_OF[name], model, file["meta"]["config"])


def is_fixed(name: str) -> bool:
    """Whether a published key is a fixed table or a version mark, not a parameter."""
    return bool(texts.FIXED.fullmatch(name)) or name == "transformer.encoder.level_embed.level_embed"


def logits(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    found = model(*inputs)
    return found[0] if isinstance(found, tuple) else found


def loss(name: str, file: dict, logits: Tensor) -> Tensor:
    """The loss whose gradients the file records."""
    if SYSTEM_OF[name] == "ilr":
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), file["inputs"]["input_ids"][:, 1:].flatten())
    if SYSTEM_OF[name] == "kausik":
        return F.cross_entropy(logits.flatten(0, 1), file["inputs"]["targets"].flatten())
    return logits.pow(2).mean()
