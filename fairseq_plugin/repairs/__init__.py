"""Repairs of fairseq: what fails with today's libraries, and what was silently wrong.

Each repair is one function. It acts only if the defect is present, has no effect when called again, and replaces names
only inside fairseq's own modules: torch and numpy stay as they are, ``torch.load`` keeps ``weights_only=True``, and
nothing is written to disk. With ``--user-dir``, fairseq imports this package before it looks up any of these names;
the exception is fairseq-hydra-train, see ``parallel.reject_ranks_that_train_alone``.
"""

from fairseq_plugin.repairs import (
    audio,
    checkpoints,
    commands,
    corpus,
    data,
    decoding,
    foreign,
    gradients,
    interactive,
    messages,
    parallel,
    ranges,
    resuming,
    saving,
    workers,
)

# Later repairs wrap earlier ones.
REPAIRS = (
    checkpoints.allow_checkpoint_types,
    checkpoints.allow_broadcast_types,
    checkpoints.broadcast_marks,
    checkpoints.explain_rejected_checkpoint,
    checkpoints.build_from_plain_options,
    checkpoints.restore_task_state,
    checkpoints.average_adaptive_softmax,
    checkpoints.begin_average_with_weights,
    checkpoints.explain_state_of_another_order,
    parallel.run_ranks_on_cpu,
    parallel.allow_data_parallel_on_cpu,
    parallel.gather_statistics_on_cpu,
    gradients.clip_gradients_on_cpu,
    gradients.unscale_gradients_once,
    gradients.grow_scale_by_its_own_option,
    gradients.count_every_symbol_of_a_band,
    parallel.destroy_process_groups,
    parallel.reject_ranks_that_train_alone,
    data.restore_numpy_names,
    data.keep_last_batch,
    data.evaluate_all_blocks,
    data.translate_own_shard,
    data.load_dictionaries_of_every_class,
    data.read_huffman_codes,
    decoding.block_repeated_ngrams,
    decoding.keep_overlaps_of_each_sentence,
    decoding.disable_encoder_fast_path,
    commands.restore_cli_logging,
    commands.allow_bf16_without_xla,
    commands.pass_layers_to_keep_as_text,
    commands.show_help_of_the_architecture,
    commands.default_validation_task,
    audio.read_audio_without_torchaudio,
    audio.reject_bad_audio,
    audio.read_files_in_hub_interface,
    foreign.read_options_as_literals,
    foreign.confine_archives,
    foreign.index_fasta_without_shell,
    saving.write_checkpoints_atomically,
    saving.copy_checkpoints_atomically,
    resuming.keep_place_in_epoch,
    resuming.restore_intact_checkpoints,
    resuming.agree_on_checkpoint,
    resuming.end_finished_runs,
    resuming.keep_patience,
    resuming.keep_training_time,
    resuming.keep_clock,
    resuming.keep_float32_weights,
    workers.end_workers_with_epoch,
    workers.end_readers_before_exit,
    corpus.reject_unequal_sides,
    corpus.store_dictionary_digests,
    corpus.require_same_dictionaries,
    corpus.require_same_symbols_of_fusion,
    interactive.read_undecodable_bytes,
    interactive.answer_every_line,
    interactive.keep_empty_sources_empty,
    interactive.warn_in_hub_interface,
    interactive.name_missing_folders,
    messages.print_errors_in_one_line,
    messages.name_weights_that_do_not_fit,
    ranges.require_values_in_range,
    messages.name_nonfinite_updates,
    messages.require_adaptive_loss,
)


def apply() -> None:
    """Applies every repair; calling it again has no effect."""
    for repair in REPAIRS:
        repair()
