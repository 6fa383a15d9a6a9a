"""fairseq-hydra-train builds our architectures from a yaml file."""

import pytest

from tests.support import cli

pytestmark = pytest.mark.skipif(cli.is_official(), reason="fairseq 0.12.2 needs a yaml with a list of defaults")

CONFIG = """\
# @package _group_
common: {{user_dir: {plugin}, cpu: true, log_format: simple, log_interval: 1, seed: 1}}
task: {{_name: translation, data: {data}, source_lang: en, target_lang: de}}
model: {{_name: ringformer_tiny, encoder_layers: 2, decoder_layers: 2, level_signal: full}}
criterion: {{_name: cross_entropy}}
optimizer: {{_name: adam, lr: [0.001]}}
lr_scheduler: {{_name: fixed}}
dataset: {{batch_size: 8, num_workers: 0, data_buffer_size: 0, disable_validation: true}}
optimization: {{max_update: 3, lr: [0.001]}}
checkpoint: {{save_dir: {folder}}}
"""


def test_a_yaml_file_trains_a_model_that_generates(corpus, tmp_path):
    text = CONFIG.format(plugin=cli.PLUGIN, data=corpus.data, folder=tmp_path / "checkpoints")
    (tmp_path / "translation.yaml").write_text(text, encoding="utf-8")
    flags = ("--config-dir", tmp_path, "--config-name", "translation", f"hydra.run.dir={tmp_path}")
    assert "num_updates 3 " in cli.run("fairseq-hydra-train", *flags)
    checkpoint = tmp_path / "checkpoints" / "checkpoint_last.pt"
    log = cli.generate(corpus.data, checkpoint, "--gen-subset", "valid", "--max-len-b", "5")
    assert len(cli.hypotheses(log)) == corpus.sentences["valid"]
