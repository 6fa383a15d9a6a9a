"""Bad values are rejected with the option, the value and the rule."""

from argparse import Namespace

import pytest
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation_lev import TranslationLevenshteinTask

from fairseq_plugin.build import build_architecture, build_language_model, numbered_dictionary
from fairseq_plugin.seq2seq import check_task
from fairseq_plugin.tasks.copying import CopyingTask
from tests.support import language, models

ONE_MATRIX = "--adaptive-input-cutoff none --adaptive-softmax-cutoff none"
ASCENDING = "must be 'none' or ascending whole numbers, each > 0 and < 23, the number of symbols"
# architecture: flags: the error
BAD = {
    "ringformer_tiny": {
        "--encoder-attention-heads 7": "--encoder-attention-heads=7: must divide --encoder-embed-dim=128",
        "--encoder-layers 0": "--encoder-layers=0: must be >= 1",
        "--signal-rank-divisor 129": "--signal-rank-divisor=129: must be >= 1 and <= --encoder-embed-dim=128",
        "--level-signal full --signal-rank-divisor 8": "--signal-rank-divisor=8: conflicts with --level-signal=full",
        "--level-signal none --ffn-signal inside": "--ffn-signal=inside: conflicts with --level-signal=none",
        "--attention-signal none --ffn-signal none": "--level-signal=low-rank: has no effect",
        "--attention-signal before --encoder-normalize-before": "--attention-signal=before: .* needs a post-norm",
        "--dropout 1.5": r"--dropout=1.5: must be a rate within \[0, 1\]",
        "--embedding-dropout 1.5": r"--embedding-dropout=1.5: must be a rate within \[0, 1\]",
        "--share-all-embeddings": "--share-all-embeddings: needs a joined dictionary",
        "--level-signal static --decoder-learned-pos": "--decoder-learned-pos: conflicts with static level signals",
    },
    "universal": {"--decoder-attention-heads 0": "--decoder-attention-heads=0: must be >= 1"},
    "one_wide_ffn_tiny": {
        "--encoder-ffn-embed-dim -4": "--encoder-ffn-embed-dim=-4: must be >= 1",
        "--decoder-ffn-embed-dim 64": "--decoder-ffn-embed-dim=64: must equal --encoder-ffn-embed-dim=512",
    },
    "vanilla_tiny": {
        "--encoder-embed-dim 0": "--encoder-embed-dim=0: must be >= 1",
        "--decoder-learned-pos --no-token-positional-embeddings": "--decoder-learned-pos: conflicts with --no-token",
        "--position rotary --encoder-learned-pos": "--encoder-learned-pos: conflicts with --position=rotary",
        "--position learned --no-token-positional-embeddings": "--no-token-positional-embeddings: conflicts with",
    },
    "sequence": {
        "--admin-profile omegas": "--admin-profile=omegas: conflicts with --init=default",
        "--share-layer-num 13": "--share-layer-num=13: must be >= 1 and <= --encoder-layers=12",
    },
    "sandwich": {
        "--decoder-unique-layers 4": "--decoder-unique-layers=4: must be 3 with sandwich",
        "--share-layer-num 2": "--share-layer-num=2: the published code has no sandwich",
    },
    "cycle": {
        "--encoder-unique-layers 13": "--encoder-unique-layers=13: must be >= 1 and <= --encoder-layers=12",
        "--share-layer-num 3 --encoder-unique-layers 4": "--encoder-unique-layers=4: conflicts with --share-layer",
        "--encoder-order 0,3": "--encoder-order=0,3: must name every block from 0 to 3; block 1 is missing",
        "--decoder-order 0,one": "--decoder-order=0,one: must be the numbers of stored blocks from 0, one per pass",
        "--encoder-order 0,1,1 --encoder-layers 4": "--encoder-layers=4: must be 3, the number of passes in",
        "--encoder-order 0,1 --encoder-unique-layers 2": "--encoder-unique-layers=2: conflicts with --encoder-o",
        "--encoder-order 0,1 --decoder-order 0,0 --share-layer-num 2": "--share-layer-num=2: conflicts with --encod",
    },
    "recursive_iwslt_de_en": {
        "--block-loops 0": "--block-loops=0: must be >= 1 and divide --encoder-layers=12",
        "--decoder-layers 7": "--block-loops=2: must be >= 1 and divide --decoder-layers=7",
    },
    "s2t_cycle": {
        "--conv-kernel-sizes 4,5": "--conv-kernel-sizes=4,5: must be odd whole numbers, separated by commas",
        "--conv-channels 33": "--conv-channels=33: must be even and >= 2",
        "--share-layer-num 2 --encoder-unique-layers 8": "--encoder-unique-layers=8: conflicts with --share-layer",
    },
    "ilr_small": {
        "--reuse-map 4,2,1": r"--reuse-map=4,2,1: has 3 entries, needs one for each of --decoder-layers=4",
        "--reuse-map 1,0,1,1": "--reuse-map=1,0,1,1: must be whole numbers >= 1, with commas between them",
        "--block-loops 0": "--block-loops=0: must be >= 1",
        "--block-loops 2 --reuse-map 1,2,1,1": "--block-loops=2: replaces --reuse-map=1,2,1,1: give only one of them",
        "--inject-embedding --reuse-map 4,2": "--reuse-map=4,2: has 2 entries, needs one for each of --decoder-layers",
        "--inject-adapter": "--inject-adapter: needs --inject-embedding",
        "--position rope --decoder-embed-dim 36": "--position=rotary: needs an even head width, but .* is 9",
    },
    "sequence_lm": {
        "--decoder-order 0,0,1 --decoder-unique-layers 2": "--decoder-unique-layers=2: conflicts with --decoder-o",
        "--decoder-order 0,0 --share-layer-num 2": "--share-layer-num=2: conflicts with --decoder-order=0,0",
        "--adaptive-input-cutoff 8,23": f"--adaptive-input-cutoff=8,23: {ASCENDING}",
        "--adaptive-input-cutoff 1": "--adaptive-input-cutoff=1: the first band must hold symbols 0 to 1",
        "--adaptive-input-cutoff 8,9": "--adaptive-input-cutoff=8,9: each band must have more than 1 symbol",
        "--adaptive-softmax-cutoff 1": "--adaptive-softmax-cutoff=1: the first band must hold symbols 0 to 1",
        f"{ONE_MATRIX} --adaptive-input-factor 2": "--adaptive-input-factor=2.0: needs bands",
        "--adaptive-input-factor 40": "--adaptive-input-factor=40.0: must be >= 1 and leave the last of the 3 bands",
        f"{ONE_MATRIX} --decoder-embed-dim 0": "--decoder-embed-dim=0: must be >= 1",
        "--adaptive-softmax-factor 0.5": "--adaptive-softmax-factor=0.5: must be >= 1 and leave",
        "--adaptive-softmax-dropout 2": r"--adaptive-softmax-dropout=2.0: must be a rate within \[0, 1\]",
        "--adaptive-softmax-cutoff 9 --tie-adaptive-weights": "--tie-adaptive-weights: --adaptive-input-cutoff=8",
        "--adaptive-softmax-factor 2": "--tie-adaptive-weights: --adaptive-input-factor=4.0 and",
        f"{ONE_MATRIX} --tie-adaptive-proj": "--tie-adaptive-proj: needs --tie-adaptive-weights",
        f"{ONE_MATRIX} --tie-adaptive-weights": "--tie-adaptive-weights: --adaptive-input-cutoff=none and",
        "--share-decoder-input-output-embed": "--share-decoder-input-output-embed: shares a single matrix",
    },
    "recurrent_lm": {
        "--window 0": "--window=0: must be >= 1",
        "--window 65 --position learned": "--window=65: must be <= the 64 learned positions",
        "--window-range 16": "--window-range=16: must be two whole numbers",
        "--window-range 2,99 --position learned": "--window-range=2,99: must be <= the 64 learned positions",
        "--window-range 48,16": "--window-range=48,16: must be A,B with 1 <= A <= B",
        "--window 2 --regular": "--window=2: conflicts with --regular",
        "--accumulate --regular": "--accumulate: conflicts with --regular",
    },
}
BAD_VALUES = [(arch, flags, message) for arch, cases in BAD.items() for flags, message in cases.items()]


@pytest.mark.parametrize(("one", "flags", "message"), BAD_VALUES, ids=[" ".join(case[:2]) for case in BAD_VALUES])
def test_bad_values_are_rejected_by_name(one, flags, message):
    small = ["--adaptive-input-cutoff", "8,14"] if one == "sequence_lm" else []
    with pytest.raises(ValueError, match=f"^{message}"):
        models.on_meta(one, *small, *flags.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--decoder-embed-dim 24", "--encoder-embed-dim=16 must equal --decoder-embed-dim=24"),
        ("--decoder-embed-path other.txt", "--encoder-embed-path= must equal --decoder-embed-path=other.txt"),
    ],
)
@models.every_translation_model
def test_one_matrix_for_all_needs_sides_that_agree(arch, flags, message):
    joined = models.task(models.TARGET_SYMBOLS, models.TARGET_SYMBOLS)
    with pytest.raises(ValueError, match=f"^--share-all-embeddings: {message}"):
        models.tiny(arch, "--share-all-embeddings", *flags.split(), on=joined)


@pytest.mark.parametrize("limit", [0, -3])
def test_fewer_than_one_learned_position_is_rejected(limit):
    with pytest.raises(ValueError, match="must be >= 1"):
        models.tiny("ilr_small", "--position", "learned", on=language.task(tokens_per_sample=limit))
    with pytest.raises(ValueError, match=f"^--max-target-positions={limit}: must be >= 1"):
        models.tiny("ilr_small", "--position", "learned", on=language.task(max_target_positions=limit))
    with pytest.raises(ValueError, match=f"^--max-target-positions={limit}: must be >= 1"):
        models.tiny("vanilla_base", "--decoder-learned-pos", on=models.task(max_target_positions=limit))


@models.every_language_model
def test_a_smaller_output_dictionary_needs_a_matrix_of_its_own(arch):
    task = language.task()
    task.output_dictionary = models.dictionary(20)
    with pytest.raises(ValueError, match="^--output-dictionary-size=20: must equal the 23 symbols of the input"):
        models.tiny(arch, on=task)


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        ("ringformer_tiny", {"encoder_leyers": 3}, "encoder_leyers=3: not an option of ringformer_tiny"),
        ("ringformer_huge", {}, "arch=ringformer_huge: must be a registered architecture"),
        ("s2t_cycle", {}, r"--task: \w+ reads text: must be speech_to_text"),
        ("s2t_cycle", {"input_feat_per_channel": 80, "input_channels": "one"}, "input_channels=one: must be a whole"),
        ("s2t_cycle", {"input_feat_per_channel": 0, "input_channels": 1}, "input_feat_per_channel=0: must be >= 1"),
        ("ringformer_tiny", {"norm_eps": -1.0}, "norm_eps=-1.0: must be > 0"),
        ("ringformer_tiny", {"embedding_std": -1.0}, "embedding_std=-1.0: must be >= 0"),
        ("ringformer_tiny", {"max_source_positions": "many"}, "max_source_positions=many: must be a whole number"),
        ("ringformer_tiny", {"signal_rank_divisor": True}, "--signal-rank-divisor=True: must be a whole number"),
    ],
)
def test_bad_values_from_python_are_rejected_by_name(arch, options, message):
    words = numbered_dictionary(9)
    with pytest.raises(ValueError, match=f"^{message}"):
        build_architecture(arch, words, words, **options)


@pytest.mark.parametrize("name", ["cycle_lm", "ilr_small"])
def test_a_negative_deviation_of_a_language_model_is_rejected_by_name(name):
    with pytest.raises(ValueError, match="^embedding_std=-1.0: must be >= 0$"):
        build_language_model(name, numbered_dictionary(9), embedding_std=-1.0)


def test_an_option_for_the_longest_text_replaces_the_common_one():
    words, small = numbered_dictionary(9), dict(encoder_embed_dim=8, encoder_ffn_embed_dim=8, encoder_layers=1)
    for options in ({}, dict(encoder_learned_pos=True)):
        model = build_architecture("vanilla_tiny", words, words, 7, max_source_positions=5, **small, **options)
        assert model.max_positions() == (5, 7)


@pytest.mark.parametrize(
    ("arch", "source", "message"),
    [
        ("cycle", None, "--task: TranslationTask reads speech; must be translation"),
        ("cycle_lm", numbered_dictionary(9), "--task: TranslationTask has a source, which a language model"),
        ("cycle_lm", None, "--task: TranslationTask has a source, which a language model"),
    ],
)
def test_a_model_on_the_wrong_kind_of_task_is_rejected(arch, source, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        build_architecture(arch, source, numbered_dictionary(9))


@pytest.mark.parametrize(
    "kind", [LanguageModelingTask, CopyingTask, MultilingualTranslationTask, TranslationLevenshteinTask]
)
def test_tasks_of_other_models_are_rejected(kind):
    with pytest.raises(ValueError, match=f"--task: {kind.__name__} .*; must be translation"):
        check_task(models.options("cycle"), kind.__new__(kind))


@pytest.mark.parametrize("kind", ["alignment", "ctc"])
def test_criterions_of_other_models_are_rejected(kind):
    criterion = f"label_smoothed_cross_entropy_with_{kind}"
    with pytest.raises(ValueError, match=f"^--criterion={criterion}: "):
        check_task(Namespace(criterion=criterion), None)


def test_a_name_in_the_arguments_of_bleu_that_is_no_option_of_a_search_is_rejected():
    """fairseq ignores it."""
    task = models.task()
    task.cfg.eval_bleu_args = '{"beam": 2, "max_len_b": 9}'
    models.tiny("cycle", on=task)
    task.cfg.eval_bleu_args = '{"beam": 2, "max-len-b": 9}'
    with pytest.raises(ValueError, match="^--eval-bleu-args: max-len-b: not an option of a search"):
        models.tiny("cycle", on=task)
