"""fairseq models from the weights of the published implementations, by tables of names (`recurrence.weights.names`).

Source: the published code of RingFormer (arXiv:2502.13181), of Takase & Kiyono (arXiv:2104.06022), of Intra-Layer
Recurrence (arXiv:2505.01855) and of Kausik's recurrent transformer.
"""

import re
from collections.abc import Callable

from fairseq.models import BaseFairseqModel

from fairseq_plugin.published import language, translation
from recurrence.papers.admin import folded
from recurrence.weights.names import StateDict, exported, to_ours

# Keys that are not converted. Published: fixed tables, version marks, and a matrix that Intra-Layer Recurrence's code
# creates for block recurrence but never uses. Ours: Admin's profile, which the published vectors already include.
FIXED = re.compile(
    r"(encoder|decoder)\.(pos_layer\.pe|lev_layer\.enc_le|version|embed_positions\._float_tensor)|model\.adapter\.weight"
    r"|profiled|(encoder|decoder)\.loop\.own\.\d+\.residuals\.\d+\.offset"
)

# System -> a function that builds the model from the published configuration, and one that gives its table of names.
SYSTEMS: dict[str, tuple[Callable, Callable]] = {**translation.SYSTEMS, **language.SYSTEMS}


def from_published(system: str, state_dict: StateDict, config: dict) -> BaseFairseqModel:
    """Builds the fairseq model of a published checkpoint.

    Args:
        system: "ringformer", "universal", "one_wide_ffn", "vanilla" (all of RingFormer's experiments), "takase", "ilr",
            "kausik".
        state_dict: published key names.
        config: the published configuration under its own keys, which :data:`SYSTEMS` read.

    Returns:
        The model in eval mode, with the dtype of the weights. A translation model is called as
        `model(src_tokens, src_lengths, prev_output_tokens)`, a language model as `model(tokens)` on published ids
        (B, T) without padding. Both return logits (B, T, vocabulary) and fairseq's extra dictionary.

    Raises:
        ValueError: if the system is unknown, the configuration has what no model here has (`rope_theta`, `bias`), a key
            is unknown or missing, a tensor has another size, or tensors that should be shared differ.
            This includes shared decoder layers that Takase & Kiyono's code trained; the error says how to load them.
    """
    if system not in SYSTEMS:
        raise ValueError(f"system={system!r}: must be one of {sorted(SYSTEMS)}")
    build, pieces = SYSTEMS[system]
    model = build(config)
    if system == "universal":  # stores the learned positions of pos_encoding=0, but adds its table of levels instead
        state_dict = {
            key: tensor for key, tensor in state_dict.items() if not key.endswith(".pos_layer.emb_layer.weight")
        }
    if system == "takase":
        translation.reject_copied_biases(state_dict, model.decoder.loop.order)
    state = model.state_dict()
    own = to_ours(state_dict, pieces(model, config), state, FIXED.fullmatch)
    model.to(next(iter(own.values())).dtype).load_state_dict({**state, **own})
    return model.eval()


def to_published(system: str, model: BaseFairseqModel, config: dict) -> StateDict:
    """The inverse of :func:`from_published`: the model's weights under the published keys, without fixed tables.

    Only parameters are compared. The published code would compute something else for a model whose options add none:
    positions in attention, another activation or scale of the embedding, `--attention-signal before`, `--post-norm`.
    To be sure, compare the logits of `from_published(system, to_published(system, model, config), config)`.

    Raises:
        ValueError: the system is unknown, or its published code has no such parameter, or needs another one.
    """
    if system not in SYSTEMS:
        raise ValueError(f"system={system!r}: must be one of {sorted(SYSTEMS)}")
    return exported(system, folded(model), list(SYSTEMS[system][1](model, config)), FIXED.fullmatch)
