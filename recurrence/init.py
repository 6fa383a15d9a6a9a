"""The initialisations of the papers' code. They change a stack, which has no embeddings, in place."""

import math

from torch import nn

from recurrence.attention import Attention
from recurrence.parts import FeedForward


def ringformer_(stack: nn.Module) -> None:
    """FFN matrices normal with deviation 0.02, all else as PyTorch's Linear; LayerNorms 1 and 0.

    Source: RingFormer's published code.
    """
    for module in stack.modules():
        if isinstance(module, FeedForward):
            nn.init.normal_(module.up.weight, std=0.02)
            nn.init.normal_(module.down.weight, std=0.02)


def fairseq_(stack: nn.Module) -> None:
    """Xavier uniform, biases 0; Q, K and V have the bounds of one matrix (3 C, C).

    Source: fairseq's transformer, which Takase & Kiyono train.
    Differs from fairseq with a memory of another width, where Q, K and V of cross-attention have bounds of their own.
    """
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in stack.modules():
        if isinstance(module, Attention):
            for name, projection in module.named_children():
                if name != "out" and isinstance(projection, nn.Linear):
                    bound = math.sqrt(6 / (projection.in_features + 3 * module.out.out_features))
                    nn.init.uniform_(projection.weight, -bound, bound)


def normal_(stack: nn.Module, std: float) -> None:
    """Every matrix normal with deviation std, every bias 0; norms keep 1 and 0.

    Source: GPT-2's code and its heirs, LLaMA's and nanoGPT's.
    """
    for module in stack.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def nanogpt_(stack: nn.Module, std: float, layers: int) -> None:
    """As :func:`normal_`, but layers that write to the residual stream have std / sqrt(2 layers).

    Source: nanoGPT's code, which Kausik's recurrent transformer trains.
    """
    normal_(stack, std)
    for module in stack.modules():
        if isinstance(module, Attention | FeedForward):
            last = module.out if isinstance(module, Attention) else module.down
            nn.init.normal_(last.weight, std=std / math.sqrt(2 * layers))
