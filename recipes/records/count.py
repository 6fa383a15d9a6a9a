"""Counts the stored parameters of a row's model, built without memory for its weights."""

import argparse
from functools import cache

import torch
from rows import Run


def translation(run: Run, keys: dict, flags: list[str]) -> torch.nn.Module:
    """A translation model with the vocabulary of scale paper on both sides."""
    from fairseq_plugin.modules.build import build_architecture, given_options, numbered_dictionary

    symbols, (options, _) = numbered_dictionary(keys["symbols"]), given_options(run.row.arch, flags)
    return build_architecture(run.row.arch, symbols, symbols, **options)


def speech(run: Run, keys: dict, flags: list[str]) -> torch.nn.Module:
    """A speech model that reads 80 filterbanks."""
    from fairseq_plugin.modules.build import build_architecture, given_options, numbered_dictionary

    options, _ = given_options(run.row.arch, flags)
    options |= dict(input_feat_per_channel=80, input_channels=1)
    return build_architecture(run.row.arch, None, numbered_dictionary(keys["symbols"]), **options)


def language(run: Run, keys: dict, flags: list[str]) -> torch.nn.Module:
    """A language model for texts as long as in training, or as `positions` says; with `classes`, it predicts those."""
    from fairseq_plugin.modules.build import build_language_model, given_options, numbered_dictionary

    symbols, positions = numbered_dictionary(keys["symbols"]), keys.get("positions") or keys["text"]
    options, _ = given_options(run.row.arch, flags)
    output = numbered_dictionary(keys["classes"]) if "classes" in keys else None
    return build_language_model(run.row.arch, symbols, positions, output=output, **options)


def images(run: Run, keys: dict, kwargs: list[str], flags: list[str]) -> torch.nn.Module:
    """An image model for the table's image size and number of classes."""
    import timm

    import timm_plugin  # noqa: F401  (registers its models)
    from timm_plugin.training.options import key_value

    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--img-size", type=int)
    size = parser.parse_known_args(flags)[0].img_size
    values = dict(map(key_value, kwargs)) | ({"img_size": size} if size else {})
    values.pop("checkpoint_path", None)
    return timm.create_model(run.row.arch, num_classes=keys.get("classes", 1000), **values)


def model(run: Run) -> torch.nn.Module:
    """The model of scale paper on the meta device."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    import fairseq_plugin  # noqa: F401  (registers its models)
    from fairseq_plugin.models.speech import SpeechToText
    from fairseq_plugin.modules.language_model import LanguageModel

    settings = run.settings()
    keys, flags = settings.keys, settings.flags
    with torch.device("meta"):
        if run.row.arch not in ARCH_MODEL_REGISTRY:
            return images(run, keys, settings.kwargs, flags)
        kind = ARCH_MODEL_REGISTRY[run.row.arch]
        if issubclass(kind, LanguageModel):
            return language(run, keys, flags)
        return (speech if issubclass(kind, SpeechToText) else translation)(run, keys, flags)


@cache
def counted(run: Run) -> dict[str, int]:
    """The counts by metric, each stored tensor once.

    params: all parameters. For translation models, params_core: those of encoder and decoder stack, params_embedding:
    of the decoder's word embedding, params_head: of the output layer.
    """
    from recurrence.count import stored

    built = model(run)
    found = {"params": stored(built)}
    if hasattr(built, "encoder") and hasattr(built.encoder, "loop"):
        found["params_core"] = stored(built.encoder.loop) + stored(built.decoder.loop)
        found["params_embedding"] = stored(built.decoder.embed_tokens)
        found["params_head"] = stored(built.decoder.output_projection)
    return found
