"""Cross-entropy at the positions that have a target, for tasks with few targets in a long text."""

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor


@register_criterion("answer_cross_entropy", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class AnswerCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """fairseq's label_smoothed_cross_entropy, with its options, at the positions that have a target.

    fairseq's own criterion looks up the probability of the padding before it masks it. That fails if the padding's
    index is after the last symbol, as in :func:`fairseq_plugin.modules.build.unpadded_dictionary`.

    If a task gives a target for each number of passes, (B, P, T), that of the passes that ran counts.
    """

    def get_lprobs_and_target(self, model, net_output, sample) -> tuple[Tensor, Tensor]:
        """Log-probabilities (targets, vocabulary) and the targets (targets,)."""
        logits, extra = net_output
        target = model.get_targets(sample, net_output)
        if target.dim() == 3:
            target = target[:, extra["passes"] - 1]
        has_target = target.ne(self.padding_idx)
        return model.get_normalized_probs((logits[has_target], extra), log_probs=True), target[has_target]
