"""Counts the stored parameters of a row's model, built without memory for its weights."""

import argparse
from functools import cache

import torch
from rows import Run, Settings


def text_model(arch: str, settings: Settings) -> torch.nn.Module:
    """A model of fairseq's with the vocabulary of scale paper, for translation on both sides.

    A speech model reads 80 filterbanks. A language model reads texts as long as in training, or as `positions` says;
    with `classes`, it predicts those.
    """
    from fairseq.models import ARCH_MODEL_REGISTRY

    from fairseq_plugin.build import (
        build_architecture,
        build_language_model,
        given_options,
        numbered_dictionary,
    )
    from fairseq_plugin.language_model import LanguageModel
    from fairseq_plugin.models.speech import SpeechToText

    keys, kind = settings.keys, ARCH_MODEL_REGISTRY[arch]
    symbols, (options, _) = numbered_dictionary(keys["symbols"]), given_options(arch, settings.flags)
    if issubclass(kind, LanguageModel):
        output = numbered_dictionary(keys["classes"]) if "classes" in keys else None
        return build_language_model(arch, symbols, keys.get("positions") or keys["text"], output=output, **options)
    if issubclass(kind, SpeechToText):
        return build_architecture(arch, None, symbols, **options, input_feat_per_channel=80, input_channels=1)
    return build_architecture(arch, symbols, symbols, **options)


def image_model(arch: str, settings: Settings) -> torch.nn.Module:
    """An image model for the table's image size and number of classes."""
    import timm

    import timm_plugin  # noqa: F401  (registers its models)
    from timm_plugin.training.options import key_value

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--img-size", type=int)
    size = parser.parse_known_args(settings.flags)[0].img_size
    values = dict(map(key_value, settings.kwargs)) | ({"img_size": size} if size else {})
    values.pop("checkpoint_path", None)
    return timm.create_model(arch, num_classes=settings.keys.get("classes", 1000), **values)


@cache
def parameters(run: Run) -> dict[str, int]:
    """The counts of a row's model of scale paper by metric, each stored tensor once.

    params: all parameters. For translation models, params_core: those of encoder and decoder stack, params_embedding:
    of the decoder's word embedding, params_head: of the output layer.
    """
    from fairseq.models import ARCH_MODEL_REGISTRY

    import fairseq_plugin  # noqa: F401  (registers its models)
    from recurrence.count import stored

    build = text_model if run.row.arch in ARCH_MODEL_REGISTRY else image_model
    with torch.device("meta"):
        built = build(run.row.arch, run.settings())
    found = {"params": stored(built)}
    if hasattr(built, "encoder") and hasattr(built.encoder, "loop"):
        found["params_core"] = stored(built.encoder.loop) + stored(built.decoder.loop)
        found["params_embedding"] = stored(built.decoder.embed_tokens)
        found["params_head"] = stored(built.decoder.output_projection)
    return found
