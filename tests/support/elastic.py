"""The criterion of elastic depth outside fairseq-train, which would tell it of other options."""

from fairseq.tasks import FairseqTask
from torch import nn

from fairseq_plugin.elastic import ElasticConfig, ElasticCrossEntropy, loops_by_side

OTHERS = dict(sentence_avg=False, seed=1, fp16=False, bf16=False, memory_efficient_fp16=False)
OTHERS |= dict(memory_efficient_bf16=False, ddp_backend="pytorch_ddp", find_unused_parameters=False, max_update=0)


def criterion_of(task: FairseqTask, kind: type = ElasticCrossEntropy, **options) -> ElasticCrossEntropy:
    """The criterion, or one derived from it, with these options."""
    return kind(task, ElasticConfig(**{**OTHERS, **options}))


def run_by(model: nn.Module) -> list[tuple[int, ...]]:
    """A list to which every call of the model will add how many passes its stacks run, the encoder's first."""
    calls: list[tuple[int, ...]] = []

    def note(*unused) -> None:
        loops = loops_by_side(model)
        calls.append(tuple(len(loop.indices(getattr(model, side).passes)) for side, loop in loops.items()))

    model.register_forward_pre_hook(note)
    return calls
