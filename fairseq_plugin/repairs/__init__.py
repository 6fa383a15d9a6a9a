"""Repairs of fairseq: what fails with today's libraries, and what was silently wrong.

Each repair is one function. It acts only if the defect is present, has no effect when called again, and replaces names
only inside fairseq's own modules: torch and numpy stay as they are, ``torch.load`` keeps ``weights_only=True``, and
nothing is written to disk. With ``--user-dir``, fairseq imports this package before it looks up any of these names;
the exception is fairseq-hydra-train, see ``parallel.reject_ranks_that_train_alone``.
"""

from fairseq_plugin.repairs.audio import read_audio_without_torchaudio, reject_bad_audio
from fairseq_plugin.repairs.checkpoints import (
    allow_broadcast_types,
    allow_checkpoint_types,
    average_adaptive_softmax,
    build_from_plain_options,
    explain_mismatched_checkpoint,
    explain_rejected_checkpoint,
    restore_task_state,
)
from fairseq_plugin.repairs.clipping import clip_gradients_on_cpu
from fairseq_plugin.repairs.commands import (
    allow_bf16_without_xla,
    default_validation_task,
    reject_useless_options,
    restore_cli_logging,
    shorten_training_log,
    show_help_of_the_architecture,
    translate_one_shard,
)
from fairseq_plugin.repairs.corpus import (
    name_dictionary_files,
    reject_damaged_corpora,
    reject_unequal_sides,
    require_same_dictionaries,
    require_targets,
    store_dictionary_digests,
)
from fairseq_plugin.repairs.data import evaluate_all_blocks, keep_last_batch, restore_numpy_names
from fairseq_plugin.repairs.decoding import (
    block_repeated_ngrams,
    disable_encoder_fast_path,
    repair_diverse_beams,
    score_without_false_warning,
)
from fairseq_plugin.repairs.foreign import confine_archives, index_fasta_without_shell, read_options_as_literals
from fairseq_plugin.repairs.interactive import (
    answer_every_line,
    keep_empty_sources_empty,
    read_any_encoding,
    warn_in_hub_interface,
)
from fairseq_plugin.repairs.messages import (
    name_embedding_files,
    name_nonfinite_updates,
    print_errors_in_one_line,
    require_adaptive_loss,
    require_known_overrides,
    require_literal_overrides,
)
from fairseq_plugin.repairs.parallel import (
    allow_data_parallel_on_cpu,
    destroy_process_groups,
    gather_statistics_on_cpu,
    reject_ranks_that_train_alone,
    run_ranks_on_cpu,
)
from fairseq_plugin.repairs.ranges import require_numbers_in_range
from fairseq_plugin.repairs.resuming import (
    agree_on_checkpoint,
    end_finished_runs,
    keep_patience,
    keep_place_in_epoch,
    log_changed_options,
    restore_intact_checkpoints,
)
from fairseq_plugin.repairs.saving import (
    copy_checkpoints_atomically,
    reject_asynchronous_saving,
    write_checkpoints_atomically,
)
from fairseq_plugin.repairs.scaling import grow_scale_by_its_own_option, unscale_gradients_once
from fairseq_plugin.repairs.workers import end_readers_before_exit, end_workers_with_epoch

REPAIRS = (
    allow_checkpoint_types,
    allow_broadcast_types,
    explain_rejected_checkpoint,
    explain_mismatched_checkpoint,
    build_from_plain_options,
    restore_task_state,
    average_adaptive_softmax,
    run_ranks_on_cpu,
    allow_data_parallel_on_cpu,
    gather_statistics_on_cpu,
    clip_gradients_on_cpu,
    unscale_gradients_once,
    grow_scale_by_its_own_option,
    destroy_process_groups,
    reject_ranks_that_train_alone,
    restore_numpy_names,
    keep_last_batch,
    evaluate_all_blocks,
    block_repeated_ngrams,
    repair_diverse_beams,
    disable_encoder_fast_path,
    score_without_false_warning,
    restore_cli_logging,
    allow_bf16_without_xla,
    shorten_training_log,
    show_help_of_the_architecture,
    default_validation_task,
    translate_one_shard,
    reject_useless_options,
    read_audio_without_torchaudio,
    reject_bad_audio,
    read_options_as_literals,
    confine_archives,
    index_fasta_without_shell,
    write_checkpoints_atomically,
    copy_checkpoints_atomically,
    reject_asynchronous_saving,
    log_changed_options,
    keep_place_in_epoch,
    restore_intact_checkpoints,
    agree_on_checkpoint,
    end_finished_runs,
    keep_patience,
    end_workers_with_epoch,
    end_readers_before_exit,
    reject_unequal_sides,
    reject_damaged_corpora,
    require_targets,
    name_dictionary_files,
    store_dictionary_digests,
    require_same_dictionaries,
    read_any_encoding,
    answer_every_line,
    keep_empty_sources_empty,
    warn_in_hub_interface,
    print_errors_in_one_line,
    require_literal_overrides,
    require_known_overrides,
    require_numbers_in_range,
    name_embedding_files,
    name_nonfinite_updates,
    require_adaptive_loss,
)

__all__ = ["REPAIRS", "apply", *(repair.__name__ for repair in REPAIRS)]


def apply() -> None:
    """Applies every repair; calling it again has no effect."""
    for repair in REPAIRS:
        repair()
