"""Snapshots: what small models of every family compute with given weights, which a later version must compute, too.

Models are built as users build them: by fairseq's command line and tasks, and by ``timm.create_model``. The weights
follow from the names and shapes of a state dict, so none are stored.

``python -m tests.support.snapshot FOLDER`` writes the values of the packages on PYTHONPATH there. Those in
``tests/reference`` are of commit 9fce83df; a case that is added later gets its values from the code that adds it.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from fairseq.data import data_utils
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.support import public
from tests.support.public import FEATURES, SOURCE_SYMBOLS, SYMBOLS, weights

KEYS, VALUES = "state_dicts.json", "snapshots.safetensors"
CLASSES = 5
WITHOUT_DROPOUT = "--dropout 0 --attention-dropout 0 --activation-dropout 0"
REORDER_AT, REORDER = 3, [2, 0, 0]  # beam search: after three tokens, row 1 ends and row 0 goes on in two ways


# Cases


@dataclass(frozen=True)
class Text:
    """An architecture registered with fairseq.

    arch, flags: of the command line.
    depths: flags of models of other depths, which load the same weights.
    """

    arch: str
    flags: str
    depths: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        return public.task_name(self.arch)

    def build(self, more: str = "") -> nn.Module:
        """The model with further flags, in float64 and eval mode."""
        rates = WITHOUT_DROPOUT + " --adaptive-softmax-dropout 0" * ("--adaptive" in self.flags)
        return public.build(self.arch, f"{rates} {self.flags} {more}").double().eval()

    def inputs(self, left_pad: bool = False) -> tuple[Tensor, ...]:
        """Source, its lengths, and the decoder's tokens; only the last of a language model.

        `left_pad` is of those tokens; a source text is padded on the other side.
        """
        target = public.rows((4, 6, 5), SYMBOLS, seed=2)
        previous = data_utils.collate_tokens(target, 1, 2, left_pad, move_eos_to_beginning=True)
        if self.task == "language_modeling":
            return (previous,)
        if self.task == "speech_to_text":
            lengths = torch.tensor([17, 9, 12])
            frames = np.random.default_rng(1).normal(size=(3, 17, FEATURES))
            return torch.from_numpy(frames), lengths, previous
        source = public.rows((5, 3, 6), SYMBOLS if self.joined else SOURCE_SYMBOLS, seed=1)
        return data_utils.collate_tokens(source, 1, 2, not left_pad), torch.tensor([5, 3, 6]), previous

    @property
    def joined(self) -> bool:
        return "--share-all-embeddings" in self.flags

    def measure(self) -> Iterator[tuple[str, Tensor]]:
        """Each quantity of the snapshot, by name."""
        model = public.filled(self.build())
        inputs, state = self.inputs(), model.state_dict()
        real = inputs[-1].ne(1)
        with torch.no_grad():
            yield "output", log_probabilities(model, model(*inputs)[0])[real]
            left = self.inputs(left_pad=True)
            yield "padded on the left", projected(log_probabilities(model, model(*left)[0])[left[-1].ne(1)])
            yield "steps", projected(read_in_steps(model, inputs))
            for flags in self.depths:
                other = self.build(flags)
                other.load_state_dict(state)
                yield f"output {flags}", projected(log_probabilities(other, other(*inputs)[0])[real])
        model.train()
        loss = loss_of(model, model(*inputs)[0], inputs[-1])
        yield "loss", loss.detach()
        yield "gradients", projected_gradients(model, loss)
        if "--init admin" in self.flags:
            yield "profile", self.profile(inputs)

    def profile(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """The sum of each tensor after the first forward pass of a training, which sets Admin's vectors."""
        model = public.filled(self.build(), profiled=0.0).train()
        model(*inputs)
        return torch.stack([tensor.double().sum() for _, tensor in sorted(model.state_dict().items())])


@dataclass(frozen=True)
class Image:
    """A model registered with timm: its name, arguments, and those of models of other depths.

    repeats: whether training draws nothing at random, so that it can be compared.
    """

    name: str
    arguments: dict[str, Any]
    depths: tuple[dict[str, Any], ...] = ()
    repeats: bool = True

    def build(self, **more: Any) -> nn.Module:
        """The model with further arguments, in float64 and eval mode."""
        with public.in_float64():
            return timm.create_model(self.name, **{"num_classes": CLASSES, **self.arguments, **more}).eval()

    def inputs(self, model: nn.Module) -> Tensor:
        shape = (2, model.in_chans, *model.patch_embed.img_size)
        return torch.from_numpy(np.random.default_rng(1).normal(size=shape))

    def measure(self) -> Iterator[tuple[str, Tensor]]:
        """Each quantity of the snapshot, by name."""
        model = public.filled(self.build())
        images, state = self.inputs(model), model.state_dict()
        with torch.no_grad():
            yield "output", model(images)
            yield "features", projected(model.forward_features(images))
            maps = model.forward_intermediates(images, intermediates_only=True)
            yield "maps", torch.stack([projected(one.flatten(2)).sum() for one in maps])
            for arguments in self.depths:
                other = self.build(**arguments)
                other.load_state_dict(state)
                yield f"output {arguments}", other(images)
        loss = (model(images) * weights((2, CLASSES))).sum()
        yield "gradients", projected_gradients(model, loss)
        if self.repeats:
            yield "training", model.train()(images).detach()
            yield "statistics", torch.stack([b.double().sum() for _, b in sorted(model.named_buffers())] or [loss * 0])


Case = Text | Image


def _translation(arch: str, flags: str = "", layers: str = "3 4", depths: tuple[str, ...] = ()) -> Text:
    """`layers`: of encoder and decoder; empty where the flags say it."""
    sizes = "--encoder-embed-dim 16 --encoder-ffn-embed-dim 24 --encoder-attention-heads 2 --decoder-attention-heads 2"
    if layers:
        sizes += " --encoder-layers {} --decoder-layers {}".format(*layers.split())
    return Text(arch, f"{sizes} {flags}", depths)


def _speech(arch: str, flags: str = "", layers: str = "4 4", depths: tuple[str, ...] = ()) -> Text:
    return _translation(arch, f"--conv-channels 12 --conv-kernel-sizes 3,5 {flags}", layers, depths)


def _language(arch: str, flags: str, depths: tuple[str, ...] = ()) -> Text:
    sizes = "--decoder-embed-dim 16 --decoder-ffn-embed-dim 24 --decoder-attention-heads 2"
    return Text(arch, f"{sizes} {flags}", depths)


def _at(*pairs: str) -> tuple[str, ...]:
    """Flags of models of these depths of encoder and decoder."""
    return tuple("--encoder-layers {} --decoder-layers {}".format(*pair.split()) for pair in pairs)


def _ringformer(flags: str, **more: Any) -> Text:
    return _translation("ringformer_base", flags, depths=_at("2 3", "5 6"), **more)


RANK = "--signal-rank-divisor 4"
CYCLE = "--encoder-unique-layers 2 --decoder-unique-layers 2"
ADAPTIVE = "--adaptive-input-cutoff 5,9"
PYRAMID = dict(img_size=64, embed_dim=8, depths=(1, 2, 1), num_heads=(2, 2, 4), mlp_ratio=2.5, nll_ratio=1.5)
STACK = dict(img_size=32, patch_size=8, embed_dim=16, depth=3, num_heads=2, mlp_ratio=2.5)
MIXER = {**STACK, "num_heads": 1}

CASES: dict[str, Case] = {
    # RingFormer and its baselines
    "ringformer": _ringformer(RANK),
    "ringformer, pre-norm": _ringformer(f"{RANK} --encoder-normalize-before --decoder-normalize-before"),
    "ringformer, Admin": _ringformer(f"{RANK} --init admin"),
    "ringformer, unequal sides": _ringformer(f"{RANK} --decoder-embed-dim 24 --decoder-attention-heads 3"),
    "ringformer, full signals": _ringformer("--level-signal full"),
    "ringformer, no signals": _ringformer("--level-signal none"),
    "ringformer, static signals": _translation("ringformer_base", "--level-signal static", depths=_at("2 3")),
    "ringformer, signals before attention": _ringformer(f"{RANK} --attention-signal before"),
    "ringformer, full signals before attention": _ringformer("--level-signal full --attention-signal before"),
    "ringformer, signals without attention": _ringformer(f"{RANK} --attention-signal none"),
    "ringformer, signals after cross-attention": _ringformer(f"{RANK} --cross-attention-signal after"),
    "ringformer, signals before cross-attention": _ringformer(f"{RANK} --cross-attention-signal before"),
    "ringformer, signals inside the FFN": _ringformer(f"{RANK} --ffn-signal inside"),
    "ringformer, signals without FFN": _ringformer(f"{RANK} --ffn-signal none"),
    "ringformer, relative": _ringformer(f"{RANK} --position relative"),
    "ringformer, rotary": _ringformer(f"{RANK} --position rotary"),
    "ringformer, ALiBi": _ringformer(f"{RANK} --position alibi"),
    "ringformer, learned": _ringformer(f"{RANK} --position learned"),
    "ringformer, no positions": _ringformer(f"{RANK} --position none"),
    "ringformer, all embeddings shared": _ringformer(f"{RANK} --share-all-embeddings"),
    "ringformer, output tied": _ringformer(f"{RANK} --share-decoder-input-output-embed --layernorm-embedding"),
    "universal": _translation("universal", depths=_at("2 3")),
    "universal, rotary": _translation("universal", "--position rotary", depths=_at("2 3")),
    "universal, relative, Admin": _translation("universal", "--position relative --init admin"),
    "one wide FFN": _translation("one_wide_ffn_base"),
    "one wide FFN, relative, pre-norm": _translation(
        "one_wide_ffn_base", "--position relative --encoder-normalize-before --decoder-normalize-before"
    ),
    "vanilla": _translation("vanilla_base", "--activation-fn gelu"),
    "vanilla, Admin": _translation("vanilla_base", "--init admin"),
    # Takase & Kiyono
    "takase vanilla": _translation("takase_vanilla", "--encoder-unique-layers 3 --decoder-unique-layers 4"),
    "sequence": _translation("sequence", CYCLE, "4 4", depths=_at("2 6", "6 8")),
    "cycle": _translation("cycle", CYCLE, "4 4", depths=_at("2 6", "6 3")),
    "cycle, Admin": _translation("cycle", f"{CYCLE} --init admin", "4 4", depths=_at("2 6", "6 2")),
    "cycle, pre-norm": _translation(
        "cycle", f"{CYCLE} --encoder-normalize-before --decoder-normalize-before", "4 4", depths=_at("2 6")
    ),
    "cycle, relative": _translation("cycle", f"{CYCLE} --position relative", "4 4", depths=_at("2 6")),
    "cycle, rotary, shared": _translation("cycle", f"{CYCLE} --position rotary --share-all-embeddings", "4 4"),
    "cycle, ALiBi": _translation("cycle", f"{CYCLE} --position alibi --no-scale-embedding", "4 4"),
    "cycle, learned": _translation("cycle", f"{CYCLE} --position learned", "4 4", depths=_at("2 6")),
    "cycle, published order": _translation("cycle", "--share-layer-num 2", "4 5"),
    "cycle, any order": _translation("cycle", "--encoder-order 0,1,1,2,0 --decoder-order 1,0,1,1", layers=""),
    "cycle, any order, Admin": _translation(
        "cycle", "--encoder-order 0,1,1,2,0 --decoder-order 1,0,1,1 --init admin", layers=""
    ),
    "cycle (rev)": _translation("cycle_rev", CYCLE, "4 4", depths=_at("2 4")),
    "sandwich": _translation("sandwich", "--encoder-unique-layers 3 --decoder-unique-layers 3", "4 4"),
    "universal of Takase": _translation("universal_small", "--position alibi", depths=_at("2 5")),
    # SReT in translation
    "recursive": _translation(
        "recursive_iwslt_de_en", "", "4 4", depths=("--block-loops 1 --encoder-layers 2 --decoder-layers 2",)
    ),
    "recursive, NLL": _translation("recursive_wmt_en_de", "--nll", "4 4"),
    "recursive, three runs, NLL without LRC": _translation(
        "recursive_wmt_en_de", "--nll --no-lrc --block-loops 3", "6 3"
    ),
    "recursive, Admin": _translation("recursive_iwslt_de_en", "--no-lrc --init admin", "4 4"),
    # Speech
    "speech, cycle": _speech("s2t_cycle", CYCLE, depths=_at("2 6")),
    "speech, sequence, three convolutions": _speech("s2t_sequence", f"{CYCLE} --conv-kernel-sizes 5,3,1"),
    "speech, any order": _speech("s2t_cycle", "--encoder-order 0,1,1,1,2 --decoder-order 0,1,0", layers=""),
    "speech, universal, relative": _speech("s2t_universal", "--position relative", depths=_at("2 3")),
    "speech, vanilla, rotary": _speech("s2t_vanilla", "--position rotary --share-decoder-input-output-embed"),
    # Language models
    **{
        f"ilr, {kind}": _language(
            "ilr_small", f"--decoder-layers 3 --reuse-map 2,1,2 --position {kind}", ("--reuse-map 1,1,3",)
        )
        for kind in ("rotary", "alibi", "relative", "learned", "sinusoidal", "none")
    },
    "ilr, older word for rotary": _language("ilr_small", "--decoder-layers 3 --reuse-map 2,1,2 --position rope"),
    "ilr, injected map": _language("ilr_small", "--decoder-layers 3 --reuse-map 2,1,2 --inject-embedding"),
    "ilr, injected loops": _language(
        "ilr_small", "--decoder-layers 2 --block-loops 2 --inject-embedding --position alibi", ("--block-loops 3",)
    ),
    "ilr, adapter": _language(
        "ilr_small", "--decoder-layers 2 --block-loops 2 --inject-embedding --inject-adapter", ("--block-loops 3",)
    ),
    "ilr, map with adapter": _language(
        "ilr_small", "--decoder-layers 3 --reuse-map 2,1,2 --inject-embedding --inject-adapter"
    ),
    "ilr, post-norm": _language("ilr_small", "--decoder-layers 2 --block-loops 2 --post-norm", ("--block-loops 4",)),
    "cycle lm, adaptive": _language(
        "cycle_lm", f"--decoder-layers 4 --decoder-unique-layers 2 {ADAPTIVE}", ("--decoder-layers 6",)
    ),
    "cycle lm, adaptive, untied": _language(
        "cycle_lm",
        "--decoder-layers 4 --decoder-unique-layers 2 --adaptive-input-cutoff none "
        "--adaptive-softmax-cutoff 6 --adaptive-softmax-factor 2",
    ),
    "cycle lm, one matrix": _language(
        "cycle_lm",
        "--decoder-layers 4 --decoder-unique-layers 2 --adaptive-input-cutoff none "
        "--share-decoder-input-output-embed --decoder-final-norm",
    ),
    "cycle lm, any order, relative": _language(
        "cycle_lm", f"--decoder-order 0,1,2,1,2,1 --position relative {ADAPTIVE}"
    ),
    "sequence lm, rotary": _language(
        "sequence_lm", f"--decoder-layers 4 --decoder-unique-layers 2 --position rotary {ADAPTIVE}"
    ),
    "universal lm": _language("universal_lm", f"--decoder-layers 3 {ADAPTIVE}", ("--decoder-layers 2",)),
    "vanilla lm": _language("vanilla_lm", f"--decoder-layers 3 {ADAPTIVE} --activation-fn gelu"),
    "recurrent lm": _language("recurrent_lm", "--decoder-layers 2"),
    "recurrent lm, learned": _language("recurrent_lm", "--decoder-layers 1 --position learned"),
    "recurrent lm, window": _language("recurrent_lm", "--decoder-layers 2 --window 3"),
    "recurrent lm, accumulating": _language(
        "recurrent_lm", "--decoder-layers 2 --window 2 --accumulate --activation-fn relu"
    ),
    "recurrent lm, untied": _language("recurrent_lm", "--decoder-layers 1 --no-share-decoder-input-output-embed"),
    "regular lm": _language("recurrent_lm", "--decoder-layers 2 --regular"),
    "regular lm, relative": _language("recurrent_lm", "--decoder-layers 2 --regular --position relative"),
    # Images
    "ringformer vit": Image("ringformer_vit", {**STACK, "signal_rank_divisor": 4}, (dict(depth=2), dict(depth=5))),
    "ringformer vit, maximum": Image(
        "ringformer_vit", {**STACK, "signal_rank_divisor": 8, "global_pool": "max", "pos_embed": "learn"}
    ),
    "uit": Image("uit", STACK, (dict(depth=2),)),
    "uit, learned levels": Image("uit", {**STACK, "level_signal": "learned"}, (dict(depth=2), dict(depth=5))),
    "uit, no class token": Image("uit", {**STACK, "class_token": False, "global_pool": "avg"}, (dict(depth=2),)),
    "uit, any order": Image("uit", {**STACK, "order": (0, 1, 1, 2, 1)}),
    "owf vit": Image("owf_vit", STACK),
    "owf vit, average": Image("owf_vit", {**STACK, "global_pool": "avg"}),
    "plain vit": Image("plain_vit", STACK),
    "plain vit, any order": Image("plain_vit", {**STACK, "order": (0, 1, 0, 2)}),
    "plain vit, no positions": Image("plain_vit", {**STACK, "pos_embed": "none", "global_pool": "avgmax"}),
    "recursive deit": Image("recursive_deit_tiny", STACK, (dict(loops=1), dict(loops=3))),
    "recursive deit, any order, NLL and LRC": Image(
        "recursive_deit_tiny", {**STACK, "order": (0, 1, 1, 1, 2), "nll": True, "lrc": True}
    ),
    "recursive deit, external loops": Image(
        "recursive_deit_tiny", {**STACK, "loops": 3, "loop_order": "external"}, (dict(loops=2), dict(loops=4))
    ),
    "recursive deit, external loops with NLL": Image(
        "recursive_deit_tiny", {**STACK, "loop_order": "external", "nll": True}, (dict(loops=1),)
    ),
    "recursive deit, NLL and LRC": Image("recursive_deit_tiny", {**STACK, "nll": True, "lrc": True}, (dict(loops=1),)),
    "recursive deit, SReT's stem": Image(
        "recursive_deit_tiny",
        {**STACK, "stem": "conv", "patch_size": 16, "img_size": 64, "class_token": False, "global_pool": "avg"},
    ),
    "recursive mixer": Image("recursive_mixer_s16", MIXER, (dict(loops=1), dict(loops=3))),
    "sret": Image("sret_t", PYRAMID, repeats=False),
    "sret, one run": Image("sret_t", {**PYRAMID, "loops": 1, "groups": ((4,), (2,), (1,))}, repeats=False),
    "sret, three runs": Image(
        "sret_t", {**PYRAMID, "loops": 3, "groups": ((4, 2, 1), (1, 2, 4), (2, 1, 2))}, repeats=False
    ),
    "sret, neither NLL nor LRC": Image("sret_t", {**PYRAMID, "nll_ratio": 0, "lrc": False}, repeats=False),
    "sret, no slices": Image("sret_t_global", PYRAMID, (dict(loops=1), dict(loops=3))),
    "sret-tl, maximum": Image("sret_tl", {**PYRAMID, "global_pool": "max"}, repeats=False),
    "sret, class token": Image("sret_tl_global", {**PYRAMID, "class_token": True, "global_pool": "avgmax"}),
    "sret, patches and class token": Image(
        "sret_tl_global", {**PYRAMID, "stem": "patch", "class_token": True, "global_pool": "token"}
    ),
    "sret nano": Image("sret_nano", {**PYRAMID, "groups": ((1,),) * 3, "nll_ratio": 0}, (dict(loops=1),)),
}


# Measuring


def log_probabilities(model: nn.Module, x: Tensor) -> Tensor:
    """What a model gives, or with an adaptive softmax the log-probabilities: (B, T, vocabulary)."""
    softmax = getattr(model.decoder, "adaptive_softmax", None)
    return x if softmax is None else softmax.get_log_prob(x, None)


def loss_of(model: nn.Module, x: Tensor, tokens: Tensor) -> Tensor:
    """A loss on what the model gives at real tokens that weights every number differently."""
    softmax = getattr(model.decoder, "adaptive_softmax", None)
    if softmax is None:
        real = x[tokens.ne(1)]
        return (real.log_softmax(-1) * weights(real.shape)).sum()
    logits, targets = softmax(x, tokens)
    bands = [(band, target) for band, target in zip(logits, targets) if target is not None]
    return sum(F.cross_entropy(band, target, ignore_index=1, reduction="sum") for band, target in bands)


def read_in_steps(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """The output of each step of cached decoding, with a reordering as in beam search."""
    *source, tokens = inputs
    memory, state, found = model.encoder(*source) if source else None, {}, []
    for end in range(1, tokens.size(1) + 1):
        if end == REORDER_AT:
            order = torch.tensor(REORDER)
            tokens = tokens[order]
            memory = model.encoder.reorder_encoder_out(memory, order) if source else None
            model.decoder.reorder_incremental_state_scripting(state, order)
        x = model.decoder(tokens[:, :end], encoder_out=memory, incremental_state=state)[0]
        found.append(log_probabilities(model, x)[tokens[:, end - 1].ne(1)])
    return torch.cat(found)


def projected(x: Tensor) -> Tensor:
    """(..., C) -> (...): each vector as one number."""
    return x @ weights(x.shape[-1:])


def projected_gradients(model: nn.Module, loss: Tensor) -> Tensor:
    """One number for the gradient of each parameter, in order of their keys."""
    model.zero_grad(set_to_none=True)
    loss.backward()
    found = []
    for key, parameter in sorted(model.state_dict(keep_vars=True).items()):
        if isinstance(parameter, nn.Parameter):
            gradient = parameter.new_zeros(parameter.shape) if parameter.grad is None else parameter.grad
            found.append((gradient * weights(gradient.shape, key)).sum())
    return torch.stack(found)


def state_dicts() -> dict[str, list[str]]:
    """The described state dict of every registered name at its own size, and of every case."""
    found = {name: public.described(public.full_size(name)) for name in public.MODELS}
    return found | {f"case {label}": public.described(case.build()) for label, case in CASES.items()}


def snapshots() -> dict[str, Tensor]:
    """Each quantity of each case, as CASE | QUANTITY."""
    found = {}
    for label, case in CASES.items():
        for quantity, value in case.measure():
            found[f"{label} | {quantity}"] = value.contiguous()
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    lines = [f"{json.dumps(name)}: {json.dumps(described)}" for name, described in state_dicts().items()]
    (folder / KEYS).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    save_file(snapshots(), folder / VALUES)
