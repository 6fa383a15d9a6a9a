"""The repairs act for every model of a program: fairseq's own train, resume, load and are used with them."""

import collections
import math
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import Dictionary
from fairseq.iterative_refinement_generator import IterativeRefinementGenerator
from fairseq.models.speech_to_text import S2TTransformerModel
from fairseq.models.transformer import TransformerModel
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_repairs import audio
from fairseq_repairs.checkpoints import tensors_in
from fairseq_repairs.replace import in_groups
from tests.support import cli, upstream
from tests.support.states import trained_tensors

pytestmark = pytest.mark.usefixtures("said")


@pytest.mark.parametrize("model", upstream.MODELS)
def test_a_model_trains_resumes_and_loads(model, trained_once, tmp_path, said):
    data, path = trained_once(model)
    said.clear()
    resumed = upstream.run_training(model, data, tmp_path, "--restore-file", path, "--lr", "0.002", "--max-epoch", "2")
    assert f"Loaded checkpoint {path} (epoch 2 @ " in said.text
    assert "end of epoch 2 (average epoch stats below)" in said.text
    (loaded,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(resumed)])
    before, after = upstream.parameters(path), upstream.parameters(resumed)
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)
    assert sum(map(torch.numel, loaded.parameters())) <= sum(value.size for value in after.values())


def test_a_trained_transformer_is_fine_tuned_with_fewer_layers(data, tmp_path):
    two = ("--encoder-layers", "2", "--decoder-layers", "2")
    path = upstream.run_training("transformer", data["text"], tmp_path / "two", *two)
    kept = ("--encoder-layers-to-keep=1", "--decoder-layers-to-keep=1")
    tuning = (*kept, "--finetune-from-model", path, "--lr", "0")
    tuned = upstream.run_training("transformer", data["text"], tmp_path / "one", *two, *tuning)
    before, after = upstream.parameters(path), upstream.parameters(tuned)
    for side in ("encoder", "decoder"):
        kept = {name for name in trained_tensors(after) if name.startswith(f"{side}.layers.")}
        assert kept
        assert all(name.startswith(f"{side}.layers.0.") for name in kept)
        assert all((after[name] == before[name.replace("layers.0", "layers.1")]).all() for name in kept)
    assert upstream.translations(upstream.use("generate", data["text"], tuned)[1])


@pytest.mark.parametrize("model", upstream.TRANSLATING)
class TestTranslation:
    def test_every_sentence_is_translated_without_repeating_words(self, model, trained_once):
        data, path = trained_once(model)
        blocked = ("--no-repeat-ngram-size", "1", "--max-len-b", "8", "--beam", "2")
        for flags in (("--nbest", "1"), ("--num-batch-buckets", "2")):
            found = upstream.translations(upstream.use("generate", data, path, *blocked, *flags)[1])
            assert sorted(found) == list(range(upstream.SENTENCES["test"]))
            assert all(max(collections.Counter(text.split()).values(), default=1) == 1 for text in found.values())

    def test_every_line_of_a_program_is_answered(self, model, trained_once, said):
        data, path = trained_once(model)
        lines = "one two\n\n" + "one " * 1100 + "\nfoo bar\n"
        found = upstream.answer(data, path, lines, "--buffer-size", "3", "--batch-size", "2", "--max-len-b", "4")
        assert sorted(found) == [0, 1, 2, 3]
        assert (bool(found[0]), found[1], found[2]) == (True, "", "")
        assert re.search(r"is 1101 tokens long: must be <= \d+( \(--max-source-positions\))?: left empty", said.text)
        assert "foo bar: 2 of 2 symbols are unknown" in said.text

    def test_a_line_that_no_batch_holds_is_left_empty(self, model, trained_once, said):
        data, path = trained_once(model)
        found = upstream.answer(
            data, path, "one\n" + "two " * 30 + "\nthree\n", "--max-tokens", "20", "--max-len-b", "4"
        )
        assert sorted(found) == [0, 1, 2]
        assert found[1] == ""
        assert "is 31 tokens long: must be <= 20 (--max-tokens): left empty" in said.text

    def test_a_loss_that_is_no_number_is_named(self, model, data, tmp_path):
        with pytest.raises(FloatingPointError, match=r"^update .*: the loss or a gradient .*Nan/Inf\)$"):
            upstream.run_training(model, data["text"], tmp_path, "--lr=1e35", "--batch-size=4", "--max-epoch=9")


def test_a_second_training_has_a_best_checkpoint_of_its_own(data, tmp_path):
    for save_dir, rate in (("good", "0.001"), ("bad", "0")):
        upstream.run_training("transformer", data["text"], tmp_path / save_dir, "--lr", rate)
        assert (tmp_path / save_dir / "checkpoint_best.pt").exists()


def test_an_empty_source_takes_no_steps_of_a_search_that_refines_translations():
    """As `--print-step` and `--retain-iter-history` print them."""
    task = TranslationTask(TranslationConfig(), Dictionary(), Dictionary())
    sample = {"net_input": {"src_tokens": torch.tensor([[1, 2]]), "src_lengths": torch.tensor([1])}}
    ((found,),) = task.inference_step(IterativeRefinementGenerator(task.target_dictionary), [], sample)
    assert (found["tokens"].tolist(), found["steps"], found["history"]) == ([2], 0, [])


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--constraints", "^--constraints: no words are given; fairseq-interactive reads them"),
        ("--print-step", r"^--print-step: only a task that refines its translations \(translation_lev\) has steps"),
        ("--retain-iter-history", "^--retain-iter-history: only a task that refines"),
    ],
)
def test_what_fairseq_generate_cannot_do_is_named(flag, message, trained_once):
    data, path = trained_once("transformer")
    with pytest.raises(ValueError, match=message):
        upstream.use("generate", data, path, flag)


@pytest.mark.parametrize("flag", ["--print-step", "--retain-iter-history"])
def test_what_prints_no_steps_accepts_their_options(flag, trained_once):
    data, path = trained_once("transformer")
    assert upstream.answer(data, path, "one two\n", flag, "--max-len-b", "4").keys() == {0}
    hub = TransformerModel.from_pretrained(str(path.parent), path.name, str(data))
    hub.generate([hub.encode("one two")], max_len_b=4, **{flag[2:].replace("-", "_"): True})


def test_shards_are_the_parts_of_a_set(trained_once):
    data, path = trained_once("transformer")
    shards = ("--max-len-b", "4", "--num-shards", "2", "--shard-id")
    found = [upstream.translations(upstream.use("generate", data, path, *shards, number)[1]) for number in (0, 1)]
    assert sorted([*found[0], *found[1]]) == list(range(upstream.SENTENCES["test"]))


def test_a_model_is_validated_without_its_task(trained_once):
    data, path = trained_once("transformer")
    upstream.use("validate", data, path, "--max-tokens", "500")


def test_buckets_and_bf16_train(data, tmp_path):
    upstream.run_training("transformer", data["text"], tmp_path, "--num-batch-buckets", "2", "--bf16")


@pytest.mark.skipif(cli.is_official(), reason="fairseq 0.12.2 has no R-Drop")
def test_r_drop_doubles_batches_in_training_only(data, tmp_path):
    name = "label_smoothed_cross_entropy_with_rdrop"
    flags = ("--criterion", name, "--rdrop-alpha", "5", "--eval-bleu")
    path = upstream.run_training("transformer", data["text"], tmp_path, *flags)
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    task.load_dataset("valid")
    sentences = task.dataset("valid")
    logs = []
    for alpha in (0.0, 5.0):
        criterion = CRITERION_REGISTRY[name](task, False, 0.1, rdrop_alpha=alpha)
        sample = sentences.collater([sentences[index] for index in range(3)])
        logs.append(criterion(model.eval(), sample)[2])
        assert len(sample["net_input"]["src_tokens"]) == 3
    assert float(logs[1]["loss"]) == pytest.approx(float(logs[0]["loss"]))
    assert float(logs[1]["nll_loss"]) == pytest.approx(float(logs[0]["nll_loss"]))


class TestMultilingual:
    """A task with a dictionary per language, each of them a source and a target."""

    @pytest.mark.parametrize(("source", "target"), [("en", "de"), ("de", "en")])
    def test_both_directions_translate(self, source, target, trained_once):
        data, path = trained_once("multilingual_transformer")
        flags = ("--task", "multilingual_translation", "--lang-pairs", "en-de,de-en")
        words = ("--source-lang", source, "--target-lang", target, "--max-len-b", "5", "--gen-subset", "valid")
        assert len(upstream.translations(upstream.use("generate", data, path, *flags, *words)[1])) == 9
        assert upstream.answer(data, path, "\n", *flags, *words[:6]) == {0: ""}

    @pytest.mark.parametrize("tagged", [[], ["--encoder-langtok", "tgt"]])
    @pytest.mark.parametrize("kind", ["translation_multi_simple_epoch", "multilingual_translation"])
    def test_an_empty_source_may_have_the_symbol_of_a_language(self, kind, tagged, data):
        words = [data["text"], f"--task={kind}", "--lang-pairs=en-de", "--source-lang=en", "--target-lang=de", *tagged]
        words += ["--langs=en,de"] if kind == "translation_multi_simple_epoch" else []
        args = options.parse_args_and_arch(options.get_generation_parser(), list(map(str, words)))
        task = tasks.setup_task(args)
        eos, word = task.source_dictionary.eos(), task.source_dictionary.index("one")
        for source, expected in (([eos], True), ([word, eos], False)):
            dataset = task.build_dataset_for_inference([torch.tensor(source)], [len(source)])
            batch = dataset.collater([dataset[number] for number in dataset.ordered_indices()])
            with nullcontext() if expected else pytest.raises(AttributeError, match="generate"):  # without a search
                ((found,),) = task.inference_step(None, [], batch)
                assert found["tokens"].tolist() == [eos]

    @pytest.mark.parametrize("keep", [[], ["--keep-inference-langtok"]])
    def test_the_symbol_of_a_language_is_kept_on_request(self, keep, data):
        words = [data["text"], "--task=translation_multi_simple_epoch", "--lang-pairs=en-de", "--langs=en,de"]
        words += ["--source-lang=en", "--target-lang=de", "--decoder-langtok", *keep]
        args = options.parse_args_and_arch(options.get_generation_parser(), list(map(str, words)))
        task = tasks.setup_task(args)
        search = task.build_generator(
            [upstream.built("transformer", task.target_dictionary)], in_groups(args).generation
        )
        symbol = task.target_dictionary.index("__de__")
        assert search.symbols_to_strip_from_output == {search.eos, *([] if keep else [symbol])}

    def test_a_language_s_dictionary_in_another_order_is_rejected(self, trained_once):
        data, path = trained_once("multilingual_transformer")
        _, _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
        checkpoint_utils.load_model_ensemble_and_task([str(path)], task=task)
        task.dicts["de"].symbols[-2:] = reversed(task.dicts["de"].symbols[-2:])
        with pytest.raises(ValueError, match=f"^{path}: was trained with another de dictionary"):
            checkpoint_utils.load_model_ensemble_and_task([str(path)], task=task)


class TestDictionaries:
    @pytest.fixture
    @staticmethod
    def other(data, tmp_path) -> Path:
        """The corpus, with a dictionary of the target in another order."""
        shutil.copytree(data["text"], tmp_path, dirs_exist_ok=True)
        lines = (tmp_path / "dict.de.txt").read_text().splitlines()
        upstream.write_lines(tmp_path / "dict.de.txt", lines[::-1])
        return tmp_path

    def test_a_model_is_not_used_or_resumed_with_another_one(self, other, trained_once, tmp_path):
        path = trained_once("transformer")[1]
        message = f"^{path}: was trained with another target dictionary"
        with pytest.raises(ValueError, match=message):
            upstream.use("generate", other, path)
        with pytest.raises(ValueError, match=message):
            upstream.run_training("transformer", other, tmp_path / "run", "--restore-file", path, "--max-epoch", "2")

    def test_another_one_is_fine_tuned_with_a_warning(self, other, trained_once, tmp_path, said):
        path = trained_once("transformer")[1]
        upstream.run_training("transformer", other, tmp_path / "run", "--finetune-from-model", path)
        assert f"{path}: was trained with another target dictionary" in said.text

    def test_models_of_different_data_are_loaded_together(self, other, trained_once, tmp_path):
        """As fairseq's own tests do; without a task, the first one's data count."""
        paths = [trained_once("transformer")[1], upstream.run_training("transformer", other, tmp_path / "run")]
        assert len(checkpoint_utils.load_model_ensemble_and_task(list(map(str, paths)))[0]) == 2


class TestLanguageModel:
    def test_the_whole_text_is_scored_at_the_model_s_positions(self, trained_once, said):
        """By default, fairseq's blocks have 1024 tokens, the model 12 positions."""
        data, path = trained_once("transformer_lm")
        expected = upstream.use("eval_lm", data, path, "--tokens-per-sample", "12")[0]
        assert "which are used instead" not in said.text
        assert upstream.use("eval_lm", data, path)[0] == expected
        assert "--tokens-per-sample 1024: more than the model's 12 positions, which are used instead" in said.text
        said.clear()
        window = ("--context-window", "4")
        expected = upstream.use("eval_lm", data, path, "--tokens-per-sample", "12", *window)[0]
        assert "which are used instead" not in said.text
        for tokens in ("14", "1024"):  # of 14: blocks of 10 fit the model, but not with the 4 tokens before each
            assert upstream.use("eval_lm", data, path, "--tokens-per-sample", tokens, *window)[0] == expected
            assert f"--tokens-per-sample {tokens}: more than the model's 12 positions" in said.text
        with pytest.raises(ValueError, match="^--context-window 12: must be < the model's 12 positions"):
            upstream.use("eval_lm", data, path, "--context-window", "12")

    def test_sentences_that_are_too_long_are_told(self, trained_once, said):
        data, path = trained_once("transformer_lm")
        flags = ("--sample-break-mode", "eos", "--model-overrides", "{'max_target_positions': 5}")
        assert math.isfinite(upstream.use("eval_lm", data, path, *flags)[0]["loss"])
        assert "blocks are too long for the model and are left out" in said.text

    def test_each_rank_scores_the_whole_text(self, trained_once):
        data, path = trained_once("transformer_lm")
        ranks = ("--distributed-world-size", "2", "--distributed-rank", "1", "--tokens-per-sample", "12")
        assert upstream.use("eval_lm", data, path, *ranks) == upstream.use("eval_lm", data, path, *ranks[4:])
        with pytest.raises(ValueError, match="^no token was evaluated"):  # all blocks are in one batch
            upstream.use("eval_lm", data, path, *ranks[4:], "--num-shards", "2", "--shard-id", "1")

    def test_workers_and_shards_read_the_text_before_their_batches(self, trained_once):
        data, path = trained_once("transformer_lm")
        window = ("--tokens-per-sample", "12", "--context-window", "4", "--batch-size", "1")
        expected = upstream.use("eval_lm", data, path, *window)[0]
        assert upstream.use("eval_lm", data, path, *window, "--num-workers", "2")[0] == expected

    @pytest.mark.parametrize(("flags", "other"), [((), ("--add-bos-token",)), (("--add-bos-token",), ())])
    def test_texts_that_begin_with_another_symbol_than_in_training_are_told(self, flags, other, data, tmp_path, said):
        path = upstream.run_training("transformer_lm", data["text"], tmp_path, *flags)
        size = ("--tokens-per-sample", "12")
        expected = upstream.use("eval_lm", data["text"], path, *size, *flags)[0]
        assert "--add-bos-token" not in said.text
        assert upstream.use("eval_lm", data["text"], path, *size, *other)[0] != expected
        words = ("with", "does not have") if flags else ("without", "has")
        assert "{}: was trained {} --add-bos-token, which this command {}".format(path, *words) in said.text

    def test_an_alignment_without_source_words_is_rejected(self, trained_once):
        data, path = trained_once("transformer_lm")
        with pytest.raises(ValueError, match="^--print-alignment: a language model .* no source words to align$"):
            upstream.answer(data, path, "one\n", "--task", "language_modeling", "--print-alignment")

    def test_a_soft_alignment_is_rejected_where_it_would_be_printed_as_links(self, trained_once):
        data, path = trained_once("transformer")
        with pytest.raises(ValueError, match="^--print-alignment soft: must be hard; only fairseq-generate prints"):
            upstream.answer(data, path, "one\n", "--print-alignment", "soft")

    def test_every_prompt_is_continued(self, trained_once):
        data, path = trained_once("transformer_lm")
        found = upstream.answer(data, path, "one\n\n", "--task", "language_modeling", "--max-len-b", "8")
        assert sorted(found) == [0, 1]
        assert found[0].startswith("one")

    @pytest.mark.parametrize(
        ("words", "more", "most", "wrong"),
        [
            (3, 0, 2, "--max-len-a 0 --max-len-b 2: an output has at most 2 symbols, .*: a prefix of 3 symbols is cut"),
            (3, 0, 3, ".* --max-len-b 3: an output has at most 3 symbols, .*: a prefix of 3 symbols is not continued"),
            (11, 0, 20, "the positions of the model: an output has at most 11 .* of 11 symbols is not continued"),
            (10, 0, 20, ""),
            (3, 1, 0, ""),
        ],
    )
    def test_a_prompt_that_fills_the_output_is_told(self, words, more, most, wrong, trained_once, said):
        (data, path), prompt = trained_once("transformer_lm"), " ".join(["one"] * words)
        flags = ("--task", "language_modeling", "--max-len-a", more, "--max-len-b", most)
        found = upstream.answer(data, path, f"{prompt}\n", *flags)[0]
        assert found.startswith(prompt) == ("is cut" not in wrong)
        told = [bool(re.fullmatch(wrong, message)) for message in said.messages if "prompt included" in message]
        assert told == [True] * bool(wrong)

    @pytest.mark.parametrize("flags", [["--sample-break-mode", "eos"], ["--sample-break-mode", "complete"]])
    def test_sentences_train(self, flags, data, tmp_path):
        upstream.run_training("transformer_lm", data["text"], tmp_path, *flags)

    def test_an_adaptive_softmax_is_averaged_and_needs_its_loss(self, data, tmp_path):
        flags = ("--adaptive-softmax-cutoff", "6", "--store-ema", "--ema-decay", "0.5")
        with pytest.raises(ValueError, match="^--criterion cross_entropy: must be adaptive_loss"):
            upstream.run_training("transformer_lm", data["text"], tmp_path, *flags)
        able = ("--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp")
        with pytest.raises(ValueError, match="^--criterion adaptive_loss: needs --adaptive-softmax-cutoff"):
            upstream.run_training("transformer_lm", data["text"], tmp_path, *able)
        path = upstream.run_training("transformer_lm", data["text"], tmp_path, *flags, *able)
        assert checkpoint_utils.load_ema_from_checkpoint(str(path))["model"].keys() >= upstream.parameters(path).keys()

    def test_an_average_in_half_precision_moves(self, data, tmp_path):
        flags = ("--bf16", "--store-ema", "--ema-decay", "0.9999", "--lr", "0.01")
        path = upstream.run_training("transformer_lm", data["text"], tmp_path, *flags)
        extra = torch.load(path, weights_only=False)["extra_state"]
        assert {tensor.dtype for tensor in tensors_in(extra["ema_fp32_params"])} == {torch.float32}

    def test_an_average_begins_with_the_weights_of_a_checkpoint_without_one(self, trained_once, tmp_path, monkeypatch):
        data, path = trained_once("transformer_lm")
        extra = checkpoint_utils.load_checkpoint_to_cpu(str(path))["extra_state"]
        assert all(tensor.numel() == 1 for tensor in tensors_in(extra))  # ranks receive the weights once
        load, loaded = checkpoint_utils.load_checkpoint, []

        def remember(*args, **kwargs):
            loaded.append(load(*args, **kwargs))
            return loaded[0]

        monkeypatch.setattr(checkpoint_utils, "load_checkpoint", remember)
        flags = ("--finetune-from-model", path, "--store-ema", "--ema-fp32", "--ema-decay", "1", "--lr", "0.1")
        tuned = upstream.run_training("transformer_lm", data, tmp_path, *flags)
        assert not {"ema", "ema_fp32_params"} & loaded[0][0].keys()  # fairseq-train keeps this until it ends
        average = checkpoint_utils.load_ema_from_checkpoint(str(tuned))["model"]
        before, after = upstream.parameters(path), upstream.parameters(tuned)
        for name, tensor in trained_tensors(average).items():
            np.testing.assert_allclose(tensor.numpy(), before[name], rtol=1e-6)
        assert any((before[name] != after[name]).any() for name in before)


class TestSpeech:
    def test_every_utterance_is_written(self, trained_once):
        data, path = trained_once("s2t_transformer")
        flags = ("--task", "speech_to_text", "--config-yaml", "config.yaml", "--max-len-b", "4", "--max-tokens", "500")
        assert len(upstream.translations(upstream.use("generate", data, path, *flags)[1])) == upstream.SENTENCES["test"]
        lines = f"{data / 'tone-test-0.wav'}\n{data / 'missing.wav'}\n"
        found = upstream.answer(data, path, lines, *flags[:6])
        assert sorted(found) == [0, 1]
        assert found[1] == ""

    def test_the_hub_transcribes_a_file(self, trained_once):
        data, path = trained_once("s2t_transformer")
        file, search = data / "tone-test-0.wav", ("--max-len-b", "4", "--beam", "2")
        flags = ("--task", "speech_to_text", "--config-yaml", "config.yaml")
        expected = upstream.answer(data, path, f"{file}\n", *flags, *search)[0]
        hub = S2TTransformerModel.from_pretrained(str(path.parent), path.name, str(data), max_len_b=4, beam=2)
        assert hub.predict(str(file)) == hub.predict(file) == expected
        with pytest.raises(TypeError, match="^predict takes the path of an audio file; Tensor is for models"):
            hub.predict(torch.zeros(1, 16000))

    def test_the_hub_tells_of_a_long_file(self, trained_once, said):
        """It is read to its end nevertheless."""
        data, path = trained_once("s2t_transformer")
        file, search = data / "tone-test-0.wav", dict(max_len_b=4, beam=2)
        found = []
        for most in (6000, 9):
            assert "max_source_positions" not in said.text
            where = (str(path.parent), path.name, str(data))
            hub = S2TTransformerModel.from_pretrained(*where, max_source_positions=most, **search)
            found.append(hub.predict(file))
        assert found[0] == found[1]
        assert f"{file}: is 40 frames long, more than max_source_positions=9" in said.text

    def test_letters_are_fine_tuned_and_resumed(self, trained_once, tmp_path, monkeypatch):
        """The task stores its dictionary in the checkpoint."""
        data, path = trained_once("wav2vec2")
        task = ["--task=audio_finetuning", "--labels=ltr", "--sample-rate=16000", "--max-tokens=50000"]
        flags = [*task, "--criterion=ctc", "--post-process=letter", "--w2v-path", path]
        monkeypatch.setitem(upstream.MODELS, "wav2vec_ctc", flags)
        tuned = upstream.run_training("wav2vec_ctc", data, tmp_path)
        saved = checkpoint_utils.load_checkpoint_to_cpu(str(tuned))
        assert isinstance(saved["task_state"]["target_dictionary"], Dictionary)
        upstream.run_training("wav2vec_ctc", data, tmp_path, "--max-epoch", "2")
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(tuned)])
        assert model.w2v_encoder.proj.out_features == 9

    def test_other_features_are_read(self, tmp_path):
        """As for speakers, pitches and energies of text_to_speech."""
        np.save(tmp_path / "pitch.npy", np.ones(7))
        assert audio.audio_utils.get_features_or_waveform(str(tmp_path / "pitch.npy")).shape == (7,)


class TestSaving:
    @pytest.mark.parametrize("option", ["--restore-file", "--continue-once"])
    def test_a_missing_file_to_start_from_starts_a_new_run(self, data, tmp_path, said, option):
        """As fairseq's own tests do, to leave a checkpoint_last.pt alone."""
        if option == "--continue-once" and cli.is_official():
            pytest.skip("fairseq 0.12.2 has no --continue-once")
        upstream.run_training("transformer", data["text"], tmp_path, option, "x.pt")
        assert f"{option} x.pt: no such file: starting a new run" in said.text

    @pytest.mark.parametrize("base", ["base.pt", "missing.pt"])
    def test_a_model_that_is_not_fine_tuned_is_told(self, trained_once, tmp_path, said, base):
        """The folder has another training, which goes on; one that began with the model goes on without a word."""
        data, path = trained_once("transformer")
        shutil.copy(path, tmp_path / "base.pt")
        shutil.copy(path, tmp_path / "checkpoint_last.pt")
        upstream.run_training("transformer", data, tmp_path, "--finetune-from-model", tmp_path / base)
        missing = "" if base == "base.pt" else ", which does not exist,"
        assert f"--finetune-from-model {tmp_path / base}{missing} is not used: the training of" in said.text
        said.clear()
        (tmp_path / "link.pt").symlink_to("base.pt")
        for epoch, same in enumerate(("base.pt", "base.pt", "link.pt"), 1):
            tuning = ("--finetune-from-model", tmp_path / same, "--max-epoch", epoch)
            upstream.run_training("transformer", data, tmp_path / "tuned", *tuning)
        assert "is not used" not in said.text

    def test_asynchronous_writes_are_those_of_fairseq(self, data, tmp_path):
        folder = tmp_path / "run"
        upstream.run_training("transformer", data["text"], folder, "--write-checkpoints-asynchronously")
        assert [path.name for path in folder.iterdir()] == ["checkpoint1.pt"]
