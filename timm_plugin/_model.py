"""The parts of timm's interface that all image models share, and their depth in training."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from recurrence.elastic import TrainingDepth, branches, may_idle
from recurrence.loop import Loop, named_loops
from timm_plugin._compat import feature_take_indices
from timm_plugin._config import ImageConfig

# Words in the names of parameters that have no weight decay although they are not vectors.
UNDECAYED = {"cls_token", "pos_embed", "level_embed", "qkv_signal", "ffn_signal"}
POOLS = ("", "avg", "max", "avgmax")  # of every model; with a class token also "token"


class ImageModel(nn.Module, ABC):
    """Base of the image models.

    A subclass's :meth:`build` creates the parts: `patch_embed`, the loops, `norm`, and sets `num_features`,
    `num_prefix_tokens`, `feature_info` and `training_depths`.

    Args:
        config: the options.

    Attributes:
        unlike_upstream: what timm's `VisionTransformer` has no place for, if that is known before weights are folded.
        global_pool: its kind of pooling, see :class:`ImageConfig`.
        passes: how many passes calls outside training run, one number per loop; None for all. A model at another depth
            is that of this depth with the same checkpoint.
        training_depths: how many passes of each loop training runs.
        num_updates: how many updates there were, see :meth:`set_num_updates`.
        deep_supervision: whether training returns the logits of several depths, see :meth:`set_deep_supervision`.

    Raises:
        ValueError: for a value that breaks its rule.
    """

    unlike_upstream: str | None = None
    global_pool: str
    passes: Sequence[int] | None = None
    training_depths: list[TrainingDepth]
    num_updates: int | None = None
    deep_supervision = False

    def __init__(self, config: ImageConfig):
        super().__init__()
        self.config: Any = config
        self.in_chans = config.in_chans
        with config.arguments_in_errors():
            self.build(config)
        self.head_hidden_size = self.embed_dim = self.num_features
        self.head_drop = nn.Dropout(config.drop_rate)
        self.reset_classifier(config.num_classes, config.global_pool)
        self.initialise()

    @abstractmethod
    def build(self, config: Any) -> None:
        """Creates the parts of the model; the head, on `num_features` pooled features, comes after them."""

    def initialise(self) -> None:
        """Sets the initial values that are not those of the parts."""

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """Images (B, in_chans, height, width) -> what `encode` takes."""

    @abstractmethod
    def encode(self, x: Tensor, depths: Sequence[int | None]) -> Tensor:
        """What `embed` gives -> what the head pools, after these numbers of passes, one per loop; None for all."""

    @abstractmethod
    def pool(self, x: Tensor) -> Tensor:
        """What `encode` gives -> the input of the classifier: (B, C), or all tokens if global_pool is ""."""

    @abstractmethod
    def features(
        self, x: Tensor, indices: int | Sequence[int] | None, norm: bool, stop_early: bool
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """For :meth:`forward_intermediates`: the output, maps (B, C, rows, columns), prefixes (B, 0 or 1, C)."""

    def check_pool(self, num_classes: int, global_pool: str | None) -> None:
        """Raises ValueError if there cannot be as many classes, or the model does not have this pooling, if given."""
        if num_classes < 0:
            raise ValueError(f"num_classes={num_classes}: must be >= 0")
        pools = (*POOLS, "token") if self.num_prefix_tokens else POOLS
        if global_pool not in (None, *pools):
            raise ValueError(f"global_pool={global_pool!r}: must be one of {pools}")

    def get_classifier(self) -> nn.Module:
        """The classifier."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replaces the classifier, and the pooling if given; with 0 classes the model returns the pooled features."""
        self.check_pool(num_classes, global_pool)
        if global_pool is not None:
            self.global_pool = global_pool
        self.num_classes = num_classes
        like = next(self.parameters())
        self.head = nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()
        self.head.to(like.device, like.dtype)
        self.head.train(self.training)
        forget_class_names(self)

    def init_weights(self, needs_reset: bool = True) -> None:
        """Resets all parameters and buffers to those of a new model, for example after `to_empty`.

        Pruned passes and stages stay pruned. `needs_reset` is timm's and unused.
        """
        shape = dict(img_size=self.patch_embed.img_size, num_classes=self.num_classes, global_pool=self.global_pool)
        with torch.device("cpu"):
            new = type(self)(**{**vars(self.config), **shape})
        for own, whole in zip(self.loops(), new.loops()):
            whole.truncate(own.passes)
        if new.num_features != self.num_features:  # stages were pruned
            new.num_features = self.num_features
            new.reset_classifier(self.num_classes)
        kept = self.state_dict()
        self.load_state_dict({name: tensor for name, tensor in new.state_dict().items() if name in kept})

    def loops(self) -> list[Loop]:
        """The loops over depth, in order."""
        return list(named_loops(self).values())

    def depth_rules(self) -> dict[str, Any]:
        """The rules for the depths of a single loop, see :meth:`ImageConfig.training_depth`."""
        return {}

    def set_num_updates(self, num_updates: int) -> None:
        """Call this before each update, with the number of updates so far, if its depth is drawn or warms up."""
        self.num_updates = num_updates

    def depths(self) -> Sequence[int | None]:
        """How many passes each loop runs: what the update draws, outside training `passes`; None for all.

        Without :meth:`set_deep_supervision`, a model that is meant to train at several depths at once runs all passes.

        Raises:
            RuntimeError: if that needs the number of the update, and it is not known.
            ValueError: if `passes` does not have a number for each loop.
        """
        loops = len(self.training_depths)
        if self.training:
            draws = self.deep_supervision or not self.supervises_depths
            drawn = [depth.drawn and draws for depth in self.training_depths]
            return [depth.depth(self.num_updates) if draw else None for depth, draw in zip(self.training_depths, drawn)]
        if self.passes and not (isinstance(self.passes, Sequence) and len(self.passes) == loops):
            shown = tuple(self.passes) if isinstance(self.passes, Sequence) else self.passes
            raise ValueError(f"passes={shown}: must have a number for each of the {loops} loops")
        return self.passes or [None] * loops

    def may_idle(self) -> bool:
        """Whether some update leaves a parameter without a gradient; torch's DistributedDataParallel must know."""
        return any(map(may_idle, self.loops(), self.training_depths))

    @property
    def supervises_depths(self) -> bool:
        """Whether `mixed_depth` or `pass_loss` asks for a loss at several depths."""
        return bool(self.config.mixed_depth or self.config.pass_loss)

    def set_deep_supervision(self, enable: bool = True) -> None:
        """Makes training return a list of logits, as `mixed_depth` or `pass_loss` needs; timm's trainer takes one.

        :class:`timm_plugin.task.DeepSupervisionTask` calls this. Without it, only the last pass is trained on.

        Raises:
            ValueError: if the model has neither option.
        """
        if not self.supervises_depths:
            raise ValueError("mixed_depth=False, pass_loss=0.0: deep supervision needs mixed_depth or pass_loss")
        self.deep_supervision = enable

    def train(self, mode: bool = True) -> "ImageModel":
        """As of any module; also warns if nothing asks for the outputs that the loss of several depths needs."""
        if mode and self.supervises_depths and not self.deep_supervision:
            name = "mixed_depth" if self.config.mixed_depth else "pass_loss"
            warnings.warn(
                f"{name}={getattr(self.config, name)}: without timm_plugin.task.DeepSupervisionTask or "
                "set_deep_supervision(), training returns the logits of the last pass only",
                stacklevel=2,
            )
        return super().train(mode)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes each pass in the backward pass; non-reentrant, so that shared blocks work under DDP."""
        for loop in self.loops():
            loop.checkpointing = enable

    def compile_blocks(self, **options: Any) -> None:
        """Compiles each stored block for training, once for all its passes; see :meth:`Loop.compile_blocks`."""
        for loop in self.loops():
            loop.compile_blocks(**options)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay, besides the vectors, to which timm's optimisers give none."""
        return {name for name, _ in self.named_parameters() if UNDECAYED.intersection(name.split("."))}

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """From the output of `forward_features` to logits, or to the input of the classifier."""
        x = self.head_drop(self.pool(x))
        return x if pre_logits else self.head(x)

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (B, in_chans, height, width) -> what the head pools, in the form that `encode` gives it."""
        return self.encode(self.embed(x), self.depths())

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        """Images (B, in_chans, height, width) -> logits (B, num_classes).

        With :meth:`set_deep_supervision`, training returns a list of logits, those of the deepest first, for
        :class:`timm_plugin.elastic.DepthLoss`.
        """
        if not (self.training and self.deep_supervision):
            return self.forward_head(self.forward_features(x))
        return [self.forward_head(encoded) for encoded in self.encode_depths(self.embed(x))]

    def encode_depths(self, x: Tensor) -> list[Tensor]:
        """What `encode` gives at each depth that this update supervises.

        At mixed depth, all passes, then the other depth (only the first if the update drew all passes).
        """
        return [self.encode(x, depths) for depths in branches(self.training_depths, self.num_updates)]

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]] | dict[str, Any]:
        """The output of `forward_features`, and the maps after the chosen depths or, of a pyramid, stages.

        Args:
            x: (B, in_chans, height, width).
            indices: depths or stages, whose maps come in ascending order, or the number of last ones; None for all.
            return_prefix_tokens: return (map, class token) for each.
            norm: also apply the final norm to the maps; in a pyramid only to the last stage, which has its width.
            stop_early: stop after the last chosen one.
            output_fmt: "NCHW" or "NLC".
            intermediates_only: return only the list.
            output_dict: return `image_features`, `image_intermediates` and `image_intermediates_prefix`, as asked for.

        Raises:
            AssertionError: for an index that there is not, as timm does.
            ValueError: if output_fmt is neither.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt={output_fmt!r}: must be 'NCHW' or 'NLC'")
        x, maps, prefix = self.features(x, indices, norm, stop_early)
        if output_fmt == "NLC":
            maps = [one.flatten(2).transpose(1, 2) for one in maps]
        else:
            maps = [one.contiguous() for one in maps]
        with_prefix = return_prefix_tokens and self.num_prefix_tokens
        if output_dict:
            found: dict[str, Any] = {"image_intermediates": maps}
            found |= {"image_intermediates_prefix": prefix} if with_prefix else {}
            return found if intermediates_only else {"image_features": x, **found}
        chosen = list(zip(maps, prefix)) if with_prefix else maps
        return chosen if intermediates_only else (x, chosen)

    def from_saved_size(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a saved model, whose images may have another size, for the size of this one."""
        return state_dict

    def adapt(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Makes a state dict of another image size, or a published one, fit this model; called by every load."""
        return state_dict

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        theirs = {key[len(prefix) :]: state_dict.pop(key) for key in list(state_dict) if key.startswith(prefix)}
        state_dict.update({prefix + key: tensor for key, tensor in self.adapt(theirs).items()})
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __prepare_scriptable__(self) -> fx.GraphModule:
        """`torch.jit.script` compiles this, the traced forward pass of inference; raises RuntimeError in training."""
        if self.training:
            raise RuntimeError("torch.jit.script: compiles the forward pass of inference; call eval() first")
        tracer = fx.Tracer()
        tracer.proxy_buffer_attributes = True  # buffers stay buffers
        graph = tracer.trace(self)
        graph.output_node().type = None  # of `forward`, which in training may have other results
        return fx.GraphModule(self, graph)


def require_batch(images: Tensor) -> None:
    """Raises AssertionError, as timm does for images of another size, unless they are (B, channels, height, width)."""
    torch._assert(images.dim() == 4, "images must be (B, channels, height, width); of one image, give image[None]")


def forget_class_names(model: nn.Module) -> None:
    """Removes the names of classes from a model's `pretrained_cfg`, as they are of other weights or of another head."""
    if config := getattr(model, "pretrained_cfg", None):  # timm adds it to a complete model
        config.update(label_names=None, label_descriptions=None)


def take(count: int, indices: int | Sequence[int] | None) -> list[int]:
    """The chosen of `count` features, each once and in ascending order; AssertionError for an index beyond them."""
    return sorted(set(feature_take_indices(count, indices)[0]))


def loop_groups(name: str, loop: Loop, start: int = 0) -> list[tuple[str, tuple[int]]]:
    """timm's patterns for layer-wise decay: a pass's own parameters at its depth, a block at the middle of its passes.

    So the scales of a model are those of an unshared one in the mean. timm only counts depths that have parameters:
    where passes own none, as in UiT, a block that all share is one layer. `name` is a regular expression;
    its first pass is at depth `start`.
    """
    runs = [[index for index, which in enumerate(loop.order) if which == block] for block in range(len(loop.blocks))]
    blocks = [(rf"^{name}\.blocks\.{which}\.", (start + run[len(run) // 2],)) for which, run in enumerate(runs)]
    return blocks + [(rf"^{name}\.own\.{index}\.", (start + index,)) for index in range(loop.passes)]


def checkpoint_filter_fn(state_dict: dict[str, Any], model: ImageModel) -> dict[str, Tensor]:
    """timm's hook for pretrained weights; :meth:`ImageModel.adapt` does the rest."""
    return model.from_saved_size(state_dict.get("model", state_dict))
