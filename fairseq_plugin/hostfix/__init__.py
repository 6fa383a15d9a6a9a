"""Repairs: what fairseq no longer does, or does wrong silently, with the libraries of today.

Each repair is a function of its own, acts only where the defect is present, may be called again without effect, and
replaces names inside fairseq's own modules alone; torch and numpy stay as they are, ``torch.load`` stays with
``weights_only=True``, and nothing is written to disk. ``--user-dir`` imports this package before fairseq looks any of
these names up. The one command that imports it later is fairseq-hydra-train; see ``parallel.refuse_lonely_ranks``.
"""

from fairseq_plugin.hostfix.audio import audio_files, refuse_bad_audio
from fairseq_plugin.hostfix.checkpoints import (
    allow_broadcast_types,
    allow_checkpoint_types,
    build_from_plain_options,
    explain_refused_checkpoint,
    explain_unfit_checkpoint,
    restore_task_state,
)
from fairseq_plugin.hostfix.clipping import clip_where_gradients_are
from fairseq_plugin.hostfix.commands import bf16_without_xla, cli_logging, no_xla, quiet_start, validation_task
from fairseq_plugin.hostfix.corpus import (
    both_sides_before_training,
    equal_sides,
    known_symbols,
    named_dictionaries,
    same_dictionaries,
)
from fairseq_plugin.hostfix.data import keep_last_batch, removed_numpy_names, whole_evaluation
from fairseq_plugin.hostfix.decoding import diverse_beams, encoder_fast_path, ngram_blocking
from fairseq_plugin.hostfix.foreign import archives_stay_inside, fasta_without_shell, literal_options
from fairseq_plugin.hostfix.interactive import every_line_counts, nothing_from_nothing, unknown_words_are_named
from fairseq_plugin.hostfix.messages import (
    adaptive_criterion,
    explosions_are_named,
    literal_overrides,
    named_embeddings,
    one_line_errors,
)
from fairseq_plugin.hostfix.parallel import cpu_data_parallel, leave_process_groups, refuse_lonely_ranks
from fairseq_plugin.hostfix.ranges import numbers_in_range
from fairseq_plugin.hostfix.resuming import (
    changed_options,
    finished_runs_stay,
    one_state_for_all_ranks,
    patience_goes_on,
    place_among_ranks,
    whole_restores,
)
from fairseq_plugin.hostfix.saving import refuse_asynchronous_saving, whole_checkpoints, whole_copies
from fairseq_plugin.hostfix.workers import readers_end_before_interpreter, workers_end_with_epoch

REPAIRS = (
    allow_checkpoint_types,
    allow_broadcast_types,
    explain_refused_checkpoint,
    explain_unfit_checkpoint,
    build_from_plain_options,
    restore_task_state,
    cpu_data_parallel,
    clip_where_gradients_are,
    leave_process_groups,
    refuse_lonely_ranks,
    removed_numpy_names,
    keep_last_batch,
    whole_evaluation,
    ngram_blocking,
    diverse_beams,
    encoder_fast_path,
    cli_logging,
    bf16_without_xla,
    quiet_start,
    validation_task,
    audio_files,
    refuse_bad_audio,
    literal_options,
    archives_stay_inside,
    fasta_without_shell,
    whole_checkpoints,
    whole_copies,
    refuse_asynchronous_saving,
    changed_options,
    place_among_ranks,
    whole_restores,
    one_state_for_all_ranks,
    finished_runs_stay,
    patience_goes_on,
    workers_end_with_epoch,
    readers_end_before_interpreter,
    equal_sides,
    known_symbols,
    both_sides_before_training,
    named_dictionaries,
    same_dictionaries,
    every_line_counts,
    nothing_from_nothing,
    unknown_words_are_named,
    one_line_errors,
    literal_overrides,
    numbers_in_range,
    named_embeddings,
    explosions_are_named,
    adaptive_criterion,
)

__all__ = ["REPAIRS", "apply", "no_xla", *(repair.__name__ for repair in REPAIRS)]


def apply() -> None:
    """Make every repair; calling it again changes nothing."""
    for repair in REPAIRS:
        repair()
