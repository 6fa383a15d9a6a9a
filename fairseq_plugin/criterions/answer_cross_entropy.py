"""Cross-entropy at the positions that have a target, for tasks that ask for few answers in a long text."""

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor


@register_criterion("answer_cross_entropy", dataclass=LabelSmoothedCrossEntropyCriterionConfig)
class AnswerCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """fairseq's label_smoothed_cross_entropy, with its options, of the answers alone.

    fairseq's own reads a probability of the padding too before it masks it, which fails where every symbol of the
    dictionary is an answer and the padding's index lies behind the last of them.
    """

    def get_lprobs_and_target(self, model, net_output, sample) -> tuple[Tensor, Tensor]:
        """Log-probabilities (answers, vocabulary) and the answers themselves."""
        target = model.get_targets(sample, net_output)
        asked = target.ne(self.padding_idx)
        logits, *extra = net_output
        return model.get_normalized_probs((logits[asked], *extra), log_probs=True), target[asked]
