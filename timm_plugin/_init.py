"""The initialisations of the papers' vision transformers."""

from timm.layers import trunc_normal_
from torch import nn

from recurrence.ffn import FeedForward


def ringformer_(model: nn.Module) -> None:
    """MLP weights Xavier uniform, their biases N(0, 1e-6), class token 0; the rest as PyTorch has it.

    Source: RingFormer's published code for images.
    """
    for mlp in model.modules():
        if isinstance(mlp, FeedForward):
            for layer in (mlp.up, mlp.down):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.normal_(layer.bias, std=1e-6)


def deit_(model: nn.Module) -> None:
    """Linear weights and class token truncated normal with std 0.02, biases 0.

    Source: DeiT (arXiv:2012.12877), after its published code.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            trunc_normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    if model.cls_token is not None:
        trunc_normal_(model.cls_token, std=0.02)


INITS = {"ringformer": ringformer_, "deit": deit_}
