"""Sharing fairseq's own models: exact at full rank, closest at lower ranks, or a rejection that states the reason."""

import argparse

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from fairseq_plugin.conversion import upstream
from fairseq_plugin.conversion.share import shared
from fairseq_plugin.conversion.unshare import unshared
from tests.support import language, models, speech
from tests.support.conversion import CLOSE, as_fairseq, logits, single_utterance

UPSTREAM = {
    "post-norm": {},
    "pre-norm": dict(encoder_normalize_before=True, decoder_normalize_before=True),
    "learned": dict(encoder_learned_pos=True, decoder_learned_pos=True, layernorm_embedding=True),
    "without positions": dict(encoder_learned_pos=True, no_token_positional_embeddings=True),
    "unequal sides": dict(decoder_layers=6, encoder_ffn_embed_dim=12, share_decoder_input_output_embed=True),
}


def fairseqs(arch: str, task: FairseqTask, **values) -> tuple[nn.Module, argparse.Namespace]:
    """A random model of fairseq's, in double precision, and its options."""
    args = argparse.Namespace(arch=arch, **values)
    if arch in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(0)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task).double()
    return models.randomise(model, 1).eval(), args


SIZE = dict(encoder_embed_dim=16, encoder_ffn_embed_dim=24, max_source_positions=64, max_target_positions=64)
SIZE |= {f"{side}_{name}": n for side in models.SIDES for name, n in (("layers", 4), ("attention_heads", 2))}


def fairseq_model(**values) -> tuple[nn.Module, argparse.Namespace]:
    return fairseqs("transformer", models.task(), **{**SIZE, **values})


def looped(model: nn.Module, args: argparse.Namespace, *how) -> tuple[nn.Module, argparse.Namespace]:
    """The model of this plugin, in double precision, and its options."""
    values, weights = shared(model, args, *how)
    converted = upstream.build(values, weights)
    converted.double().load_state_dict(weights)
    return converted, values


@pytest.mark.parametrize("name", UPSTREAM)
@pytest.mark.parametrize(
    ("strategy", "unique_layers"), [("sequence", 2), ("cycle", 1), ("cycle_rev", 2), ("sandwich", 3)]
)
def test_full_rank_is_exact_and_folds_back(name, strategy, unique_layers):
    model, args = fairseq_model(**UPSTREAM[name])
    loop, values = looped(model, args, strategy, unique_layers, 16)
    assert type(loop).__module__ == "fairseq_plugin.models.parameter_sharing"
    assert len(loop.encoder.loop.blocks) == unique_layers
    torch.testing.assert_close(logits(loop), logits(model), **CLOSE)
    _, weights = unshared(loop, values)
    for key, tensor in model.state_dict().items():
        if not upstream.FIXED.fullmatch(key):
            first = 2 if key.endswith("embed_positions.weight") else 0  # no token has place 0 or 1
            used = slice(first, None)
            torch.testing.assert_close(weights[key][used], tensor[used], rtol=0, atol=1e-9, msg=key)


BANDS = dict(adaptive_input=True, adaptive_input_cutoff="8,14", adaptive_softmax_cutoff="8,14")
FAIRSEQ_LANGUAGE = {
    "as published": dict(BANDS, tie_adaptive_weights=True, tie_adaptive_proj=True, no_decoder_final_norm=True),
    "untied bands": dict(BANDS, no_decoder_final_norm=True),
    "bands of the output": dict(adaptive_softmax_cutoff="8"),
    "one matrix": dict(share_decoder_input_output_embed=True, activation_fn="gelu"),
    "two matrices": dict(no_scale_embedding=True),
}


def fairseq_language(**values) -> tuple[nn.Module, argparse.Namespace]:
    size = {f"decoder_{name}": 16 for name in ("embed_dim", "input_dim", "output_dim")}
    size |= dict(decoder_ffn_embed_dim=24, decoder_layers=4, decoder_attention_heads=2, decoder_normalize_before=True)
    limits = dict(tokens_per_sample=language.POSITIONS, max_target_positions=None, add_bos_token=False, tpu=False)
    values = {**upstream.language_defaults(), **size, **limits, **values}
    return fairseqs("transformer_lm", language.task(), **values)


def probabilities(model: nn.Module) -> Tensor:
    """Of the tokens of three texts, as logarithms."""
    tokens = language.texts()
    return model.get_normalized_probs(model(tokens), True, {"target": tokens})[models.is_token(tokens)]


FAIRSEQ_SPEECH = {
    "as published": dict(share_decoder_input_output_embed=True),
    "unequal sides": dict(decoder_layers=2, decoder_embed_dim=24, layernorm_embedding=True, conv_kernel_sizes="3,5,1"),
}


def fairseq_speech(**values) -> tuple[nn.Module, argparse.Namespace]:
    size = dict(SIZE, conv_channels=12, conv_kernel_sizes="3,5", input_feat_per_channel=speech.FEATURES)
    size |= dict(input_channels=1)  # which fairseq 0.12.2 has from the task
    return fairseqs("s2t_transformer", models.task_of("s2t_cycle"), **{**size, **values})


def utterances(model: nn.Module) -> Tensor:
    """The logits of three utterances, each in a batch of its own."""
    return torch.cat([model(*single_utterance(index))[0].flatten() for index in range(3)])


OTHERS = {f"language, {name}": (fairseq_language, values, probabilities) for name, values in FAIRSEQ_LANGUAGE.items()}
OTHERS |= {f"speech, {name}": (fairseq_speech, values, utterances) for name, values in FAIRSEQ_SPEECH.items()}
FAMILIES = {fairseq_language: "fairseq_plugin.models.shared_lm", fairseq_speech: "fairseq_plugin.models.speech"}


@torch.no_grad()
@pytest.mark.parametrize(("make", "values", "output"), OTHERS.values(), ids=OTHERS)
def test_language_models_and_speech_are_shared(make, values, output):
    model, args = make(**values)
    loop, options = looped(model, args, "cycle_rev", 2, 16)
    assert type(loop).__module__ == FAMILIES[make]
    assert {len(found.blocks) for found in models.loops(loop)} == {2}
    torch.testing.assert_close(output(loop), output(model), **CLOSE)
    torch.testing.assert_close(output(as_fairseq(loop, options)), output(model), **CLOSE)
    lower, _ = looped(model, args, "cycle_rev", 2, 2)
    assert not torch.allclose(output(lower), output(model), **CLOSE)


def test_a_higher_rank_is_nearer_and_folds_into_the_same_model():
    model, args = fairseq_model()
    original = {key: tensor for key, tensor in model.state_dict().items() if not upstream.FIXED.fullmatch(key)}
    errors = []
    for rank in (None, 1, 4, 12):
        loop, values = looped(model, args, "cycle", 2, rank)
        torch.testing.assert_close(logits(as_fairseq(loop, values)), logits(loop), **CLOSE)
        _, weights = unshared(loop, values)
        matrices = [key for key, tensor in original.items() if ".layers." in key and tensor.dim() == 2]
        errors.append(sum((weights[key] - original[key]).square().sum().item() for key in matrices))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.1 * errors[0]


def test_passes_without_terms_run_the_mean_of_their_layers():
    model, args = fairseq_model()
    _, weights = shared(model, args, "cycle", 2, None)
    theirs = model.state_dict()
    assert not [key for key in weights if ".own." in key]
    for ours, name in (("ffn.up.weight", "fc1.weight"), ("norms.1.bias", "final_layer_norm.bias")):
        mean = (theirs[f"encoder.layers.1.{name}"] + theirs[f"encoder.layers.3.{name}"]) / 2
        torch.testing.assert_close(weights[f"encoder.loop.blocks.1.{ours}"], mean)


def test_options_that_older_versions_left_empty_are_read():
    model, args = fairseq_model()
    args.base_layers = None
    looped(model, args, "cycle", 2, None)


HOW = ("cycle", 2, 4)


@pytest.mark.parametrize(
    ("make", "how", "values", "message"),
    [
        (fairseq_model, ("cycle", 2, 17), {}, "--rank=17: must be >= 1 and <= the model's width, 16"),
        (fairseq_model, ("cycle", 2, 0), {}, "--rank=0: must be >= 1"),
        (fairseq_model, ("cycle", 5, 4), {}, "--unique-layers=5: must be >= 1 and <= --encoder-layers=4"),
        (fairseq_model, HOW, dict(decoder_layers=1), "--unique-layers=2: must be >= 1 and <= --decoder-layers=1"),
        (fairseq_model, ("sequence", 3, 4), {}, "--unique-layers=3: must divide --encoder-layers=4 with sequence"),
        (fairseq_model, HOW, dict(no_cross_attention=True), "--no-cross-attention=True: must be False, as in every"),
        (fairseq_model, HOW, dict(decoder_output_dim=8), "--decoder-output-dim=8: must equal --decoder-embed-dim=16"),
        (fairseq_model, HOW, dict(arch="lstm"), "--arch lstm: must be one of fairseq's own transformer, "),
        (fairseq_language, HOW, dict(decoder_learned_pos=True), "--decoder-learned-pos=True: must be False"),
        (fairseq_language, HOW, dict(decoder_normalize_before=False), "--decoder-normalize-before=False: must be True"),
        (fairseq_speech, HOW, dict(encoder_normalize_before=False), "--encoder-normalize-before=False: must be True"),
        (fairseq_speech, HOW, dict(ctc_weight=0.3), "--ctc-weight=0.3: must be 0, as in every looped"),
    ],
)
def test_models_that_cannot_be_shared_are_rejected(make, how, values, message):
    model, args = make()
    vars(args).update(values)
    with pytest.raises(ValueError, match=message):
        shared(model, args, *how)
