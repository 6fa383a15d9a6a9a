"""Train an image classifier, any model of timm or timm_plugin, with timm's own loaders, tasks and optimisers.

    python recipes/train_image.py DATA --model sret_t --output runs/sret_t [options]
    torchrun --nproc_per_node 2 recipes/train_image.py DATA --model sret_t --output runs/sret_t [options]

DATA holds one folder (or one .tar file) of class folders for each split; with --dataset it is the root of a torchvision
set. --output gets last.pth.tar, model_best.pth.tar and summary.csv, a line an epoch, which has the learnable residual
coefficients of a model too. The same command with --resume goes on after the last whole epoch and ends with the same
weights as without the interruption, on a CPU bit for bit.

Differs from timm's train.py: the learning rate (linear warm-up, then half a cosine to --min-lr) changes at every
update, the average of the weights warms up, what is evaluated is the average where there is one, and distillation is
SReT's (arXiv 2111.05297): the teacher's soft labels alone, or to compare DeiT's hard ones.
"""

import argparse
import logging
import math
import os
import sys
import time
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from image_files import damage, last_checkpoint, one_line, record
from image_options import DEPTH, TRIVIAL, OptionError, check, parser, refuse
from timm import data, task, utils
from timm.data.transforms import str_to_interp_mode
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils.checkpoint_saver import load_checkpoint_metadata
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision import transforms
from tqdm import tqdm

from recurrence.analysis.coefficients import named_coefficients
from recurrence.count import stored
from recurrence.elastic import at_depths, may_idle
from recurrence.errors import tell_torchrun
from recurrence.loop import Loop
from timm_plugin.elastic import PassLoss
from timm_plugin.mixed_depth import MixedDepth, MixedDepthLoss

logger = logging.getLogger("train_image")
# What may change when a run goes on; the world size may not, as the batch grows with it.
PER_CALL = {"data", "output", "resume", "workers", "device", "compile", "distributed", "rank", "local_rank"}


def build(option: str, args: argparse.Namespace, **settings: object) -> nn.Module:
    """The model or teacher, at --img-size where its constructor takes a size.

    Raises:
        OptionError: the constructor refuses an argument, or the weights are of another model.
    """
    name, kwargs = getattr(args, option), dict(getattr(args, f"{option}_kwargs"))
    if option == "model":
        kwargs |= {key: getattr(args, key) for key in DEPTH if getattr(args, key)}
        if args.depth_range:
            kwargs["depth_seed"] = args.seed
    if args.img_size and timm.get_pretrained_cfg(name).fixed_input_size:
        kwargs.setdefault("img_size", args.img_size)
    try:
        return timm.create_model(name, **settings, **kwargs)
    except (RuntimeError, TypeError, ValueError) as error:
        refuse(f"{option}_kwargs", kwargs, str(error))


def datasets(args: argparse.Namespace) -> tuple[Dataset, Dataset, int]:
    """What to train on, what to evaluate on, and the number of their classes.

    Raises:
        OptionError: there are no images, or the two differ in classes.
    """
    try:
        both = [data.create_dataset(args.dataset, args.data, split) for split in (args.train_split, args.val_split)]
    except (AssertionError, RuntimeError) as error:  # timm asserts the name, torchvision the files
        refuse("dataset", args.dataset, f"not in {args.data}: {error}")
    readers = [getattr(dataset, "reader", dataset) for dataset in both]  # that of a tar has a name of its own for it:
    classes = [getattr(reader, "class_name_to_idx", None) or reader.class_to_idx for reader in readers]
    if classes[0] != classes[1]:
        refuse("val_split", args.val_split, f"must hold the classes of {args.train_split}, {', '.join(classes[0])}")
    return *both, len(classes[0])


def soft_distillation(student: nn.Module, teacher: nn.Module, temperature: float, **settings) -> task.TrainingTask:
    """SReT's distillation: the mean of -sum softmax(teacher / T) log_softmax(student / T), no hard label.

    timm's loss is the Kullback-Leibler divergence times T^2, so the weight takes T^2 back. What is left is the loss
    above less the teacher's entropy, which has no gradient. Source: arXiv 2111.05297 and its published code.
    """
    weights = dict(task_loss_weight=0.0, distill_loss_weight=temperature**-2)
    return task.LogitDistillationTask(student, teacher, temperature=temperature, **weights, **settings)


class HardLabels(nn.Module):
    """A teacher that is sure of the class that it finds most probable: its softmax is one-hot, to the last bit.

    Args:
        teacher: the model whose logits (B, classes) say which class.
    """

    def __init__(self, teacher: nn.Module):
        super().__init__()
        self.teacher, self.pretrained_cfg = teacher, teacher.pretrained_cfg

    def forward(self, images: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> (B, classes): 0, and 1e4 for one class."""
        logits = self.teacher(images)
        return 1e4 * F.one_hot(logits.argmax(1), logits.shape[1]).to(logits.dtype)


def hard_distillation(student: nn.Module, teacher: nn.Module, **settings) -> task.TrainingTask:
    """DeiT's distillation: half the loss of the labels, half that of the teacher's class.

    The second is of the output of its own that a student with a distillation token has, else of the one output that
    there is: the divergence from a one-hot distribution, which timm's task computes, is the cross-entropy with its
    class. Source: DeiT (arXiv 2012.12877), section 4, and its published code; SReT's Table 3, "GT+Hard Distill".
    """
    if hasattr(student, "set_distilled_training"):
        return task.TokenDistillationTask(student, teacher, distill_type="hard", task_loss_weight=0.5, **settings)
    return task.LogitDistillationTask(student, HardLabels(teacher), task_loss_weight=0.5, **settings)


def make_task(args: argparse.Namespace, model: nn.Module, device: torch.device) -> task.TrainingTask:
    """Learning from the labels of the data, with --teacher from soft labels alone, or from both kinds of hard ones.

    Raises:
        OptionError: a teacher for a model that is trained at several depths at once.
    """
    criterion = dict(soft_targets=True) if args.mixup or args.cutmix else dict(smoothing=args.smoothing)
    settings = dict(criterion_kwargs=criterion, device=device)
    mixed = isinstance(model, MixedDepth)
    if not args.teacher:
        learning = task.ClassificationTask(model, **settings)
        learning.criterion = MixedDepthLoss(learning.criterion) if mixed else learning.criterion
        learning.criterion = PassLoss(learning.criterion, args.pass_loss) if args.pass_loss else learning.criterion
        return learning
    if args.pass_loss:
        refuse("pass_loss", args.pass_loss, "must not be given with --teacher, whose labels are for one pass")
    if mixed:
        refuse("teacher", args.teacher, f"must not be given with {args.model}, whose two depths learn from labels")
    teacher = build("teacher", args, num_classes=args.num_classes, pretrained=not args.teacher_checkpoint).to(device)
    if args.teacher_checkpoint:
        try:
            timm.models.load_checkpoint(teacher, args.teacher_checkpoint)
        except (RuntimeError, ValueError) as error:
            refuse("teacher_checkpoint", args.teacher_checkpoint, str(error))
    if args.distillation == "hard":
        return hard_distillation(model, teacher, **settings)
    return soft_distillation(model, teacher, args.temperature, **settings)


def with_torchvision(args: argparse.Namespace, timms: transforms.Compose, config: dict) -> transforms.Compose:
    """timm's transforms for training, with torchvision's in their place where --resize or --aa trivial asks for them.

    Raises:
        OptionError: the side to crop from is shorter than the images'.
    """
    steps, sides = list(timms.transforms), config["input_size"][1:]
    if args.resize:
        if args.resize < max(sides):
            refuse("resize", args.resize, f"must be >= {max(sides)}, the side of the images")
        resize = transforms.Resize(args.resize, str_to_interp_mode(config["interpolation"]))
        steps[0] = transforms.Compose([resize, transforms.RandomCrop(sides)])
    if args.aa == TRIVIAL:
        steps.insert(-1, transforms.TrivialAugmentWide())
    return transforms.Compose(steps)


def make_loaders(args: argparse.Namespace, model: nn.Module, sets: list[Dataset], device: torch.device) -> list:
    """timm's loaders for training and evaluation.

    Raises:
        OptionError: repeated augmentation in a single process, or what with_torchvision raises.
    """
    if args.aug_repeats and not args.distributed:
        refuse("aug_repeats", args.aug_repeats, "timm has it for several processes alone; must be 0 without torchrun")
    config = data.resolve_data_config(dict(img_size=args.img_size, crop_pct=args.crop_pct), model=model)
    common = {name: config[name] for name in ("input_size", "interpolation", "mean", "std")}
    common |= dict(batch_size=args.batch_size, num_workers=args.workers, distributed=args.distributed, device=device)
    # With persistent workers, the chance that an epoch draws would depend on whether it follows another.
    common |= dict(pin_memory=device.type == "cuda", persistent_workers=False)
    trivial = args.aa == TRIVIAL
    augmentation = dict(no_aug=args.no_aug, scale=args.scale, hflip=args.hflip, num_aug_repeats=args.aug_repeats)
    augmentation |= dict(color_jitter=None if trivial else args.color_jitter, auto_augment=None if trivial else args.aa)
    augmentation |= dict(re_prob=args.reprob, re_mode="pixel")
    if args.mixup or args.cutmix:
        mixing = dict(label_smoothing=args.smoothing, num_classes=args.num_classes)
        augmentation |= dict(collate_fn=data.FastCollateMixup(args.mixup, args.cutmix, **mixing))
    training = data.create_loader(sets[0], is_training=True, **augmentation, **common)
    sets[0].transform = with_torchvision(args, sets[0].transform, config)
    return [training, data.create_loader(sets[1], crop_pct=config["crop_pct"], crop_mode=config["crop_mode"], **common)]


class Trainer:
    """A task, what updates it, and the two loaders, all of the checked options.

    `args` holds also what timm's init_distributed_device adds; `num_classes` is added here.

    Raises:
        OptionError: options that do not go with the data or the model, or not one update in an epoch.
    """

    def __init__(self, args: argparse.Namespace, device: torch.device):
        self.args, self.device = args, device
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32, as timm's trainer has it
        utils.random_seed(args.seed << 16)
        *sets, args.num_classes = datasets(args)
        self.model = model = build("model", args, num_classes=args.num_classes).to(device)
        self.task = make_task(args, model, device)
        self.train_loader, self.val_loader = make_loaders(args, model, sets, device)
        # Of an epoch; batches that do not fill an update are left out.
        self.updates = len(self.train_loader) // args.grad_accum_steps
        if not self.updates:
            most = len(self.train_loader.sampler) // args.grad_accum_steps
            refuse("batch_size", args.batch_size, f"must be <= {most}, the images a process")
        self.optimizer = create_optimizer_v2(model, args.opt, lr=args.lr, weight_decay=args.weight_decay)
        falling = args.epochs - args.warmup_epochs if args.warmup_prefix else args.epochs
        schedule = dict(num_epochs=falling, warmup_epochs=args.warmup_epochs, warmup_prefix=args.warmup_prefix)
        schedule |= dict(warmup_lr=args.lr / 1000)
        schedule |= dict(min_lr=args.min_lr, step_on_epochs=False, updates_per_epoch=self.updates)
        self.scheduler, _ = create_scheduler_v2(self.optimizer, **schedule)
        self.scaler = utils.NativeScaler(device.type) if args.amp == "float16" else None
        self.autocast = partial(torch.autocast, device.type, getattr(torch, args.amp or "float32"), bool(args.amp))
        self.bar = partial(tqdm, leave=False, disable=None if args.rank == 0 else True)  # None: only on a terminal
        if args.model_ema_decay:
            self.task.setup_ema(decay=args.model_ema_decay, use_warmup=True)
        if args.compile and hasattr(model, "compile_blocks"):
            model.compile_blocks()
        elif args.compile:
            self.task.compile()
        logger.info(f"{args.model}: {stored(model):,} stored parameters, {len(sets[0]):,} training images")

    def learn(self, images: Tensor, targets: Tensor, last: bool) -> Tensor:
        """Add a batch's gradients; after the last batch of an update, one step of the optimiser with clipped gradients.

        Returns:
            The batch's mean loss.
        """
        clip, parameters = self.args.clip_grad, list(self.task.get_clip_parameters())
        with nullcontext() if last else self.task.no_sync():
            with self.autocast():
                loss = self.task(images, targets)["loss"]
            share = loss / self.args.grad_accum_steps
            if self.scaler:
                self.scaler(share, self.optimizer, clip_grad=clip, parameters=parameters, need_update=last)
            else:
                share.backward()
        if not last:
            return loss.detach()
        if not self.scaler:
            if clip:
                utils.dispatch_clip_grad(parameters, clip)
            self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self, epoch: int) -> dict[str, float]:
        """One epoch: mean loss, updates so far, seconds.

        Raises:
            ArithmeticError: the loss is no longer a number.
        """
        args, losses, start = self.args, utils.AverageMeter(), time.monotonic()
        utils.random_seed((args.seed << 16) + (epoch + 1) * args.world_size, args.rank)  # the same in a resumed run
        if args.distributed:
            self.train_loader.sampler.set_epoch(epoch)
        self.task.train()
        total = self.updates * args.grad_accum_steps
        batches = self.bar(islice(self.train_loader, total), f"epoch {epoch + 1}", total=total)
        for number, (images, targets) in enumerate(batches, start=1):
            if args.depth_range:
                self.model.set_num_updates((epoch * total + number - 1) // args.grad_accum_steps)
            updates, left = divmod(epoch * total + number, args.grad_accum_steps)
            loss = self.learn(images, targets, last=not left)
            if not left:
                self.task.update_ema(step=updates)
                self.scheduler.step_update(updates)
            losses.update(utils.reduce_tensor(loss, args.world_size) if args.distributed else loss)
        if args.distributed:
            for ema in (False, True)[: 1 + self.task.has_ema()]:
                utils.distribute_bn(self.task.get_trainable_module(ema), args.world_size, reduce=True)
        if not math.isfinite(losses.avg):
            raise ArithmeticError(f"loss {losses.avg} in epoch {epoch + 1}: lower --lr, or set --clip-grad")
        return {"loss": float(losses.avg), "updates": updates, "seconds": round(time.monotonic() - start, 2)}

    @torch.inference_mode()
    def evaluate(self) -> dict[str, float]:
        """Loss, top-1 and top-5 in per cent, of the averaged weights where they are kept.

        With --depth-range also at its ends: smallest_depth_loss, largest_depth_top1 and so on.
        """
        self.task.eval()
        model = self.task.get_eval_model(ema=self.task.has_ema())
        found = self.evaluate_at(model)
        if self.args.depth_range:
            loops = [module for module in model.modules() if isinstance(module, Loop)]
            for name, end in (("smallest", 0), ("largest", -1)):
                with at_depths({loop: loop.draw.depths[end] for loop in loops}):
                    found |= {f"{name}_depth_{key}": value for key, value in self.evaluate_at(model).items()}
        return found

    def evaluate_at(self, model: nn.Module) -> dict[str, float]:
        """Loss, top-1 and top-5 of a model at the depth that it is at."""
        evaluator = self.task.create_evaluator(max_samples=task.evaluation_sample_limit(self.val_loader))
        for images, targets in self.bar(self.val_loader, "evaluation"):
            with self.autocast():
                output = model(images)
            evaluator.update(output, targets)
        return dict(evaluator.compute(distributed=self.args.distributed))

    def resume(self, path: Path) -> int:
        """Take over all state of a checkpoint.

        Returns:
            The epoch to go on with.

        Raises:
            OptionError: an option is not that of the run, or the file is torn.
        """
        wrong = damage(path)
        if wrong:
            whole = sorted(other.name for other in path.parent.glob("*.pth.tar") if damage(other) is None)
            way = f"; {' and '.join(whole)} beside it could take its name" if whole else ""
            refuse("resume", path, f"is {wrong}{way}")
        before, defaults = vars(load_checkpoint_metadata(path)["args"]), parser("")
        for name, ours in vars(self.args).items():
            theirs = before.get(name, defaults.get_default(name))  # a run from before there was such an option
            if name not in PER_CALL and theirs != ours:
                refuse(name, ours, f"must be {theirs}, as in the run that {path} is of")
        epoch = task.resume_task_checkpoint(self.task, path, self.optimizer, self.scaler)
        if self.task.has_ema():
            task.load_task_ema_checkpoint(self.task, path)
        self.scheduler.step_update(epoch * self.updates)
        return epoch

    def run(self) -> None:
        """Train, evaluate, record and save, an epoch after the other.

        The line of an epoch is written before its checkpoint: after a kill in between the epoch is trained again, and
        the line with it.
        """
        args, output = self.args, Path(self.args.output)
        table, last = output / "summary.csv", last_checkpoint(args)
        state = dict(args=args, amp_scaler=self.scaler, task=self.task, checkpoint_dir=args.output, max_history=1)
        saver = utils.CheckpointSaver(self.task.get_eval_model(), self.optimizer, **state)
        start = self.resume(last) if last else 0
        if args.rank == 0:
            output.mkdir(parents=True, exist_ok=True)
            record(table, start)
            if start:
                saver.load_state_dict_from_checkpoint(last)
        if args.distributed:
            idle = any(may_idle(module) for module in self.model.modules() if isinstance(module, Loop))
            devices = [self.device] if self.device.type == "cuda" else None
            self.task.prepare_distributed(device_ids=devices, find_unused_parameters=idle)
        for epoch in range(start, args.epochs):
            trained, tested = self.train(epoch), self.evaluate()
            trained |= named_coefficients(self.task.get_eval_model())
            if args.rank == 0:
                line = {f"train_{name}": value for name, value in trained.items()}
                line |= {f"eval_{name}": value for name, value in tested.items()}
                record(table, epoch, {"epoch": epoch, **line, "lr": self.optimizer.param_groups[0]["lr"]})
                saver.save_checkpoint(epoch, metric=tested["top1"])
                told = f"loss {trained['loss']:.4f}, top-1 {tested['top1']:.2f} %, {trained['seconds']:.1f} s"
                logger.info(f"epoch {epoch + 1} of {args.epochs}: {told}")


def main() -> None:
    command_line = parser(__doc__)
    args = command_line.parse_args()
    try:
        check(args)
        device = utils.init_distributed_device(args)
        utils.setup_default_logging(logging.WARNING)
        logger.setLevel(logging.INFO if args.rank == 0 else logging.WARNING)
        Trainer(args, device).run()
    except OptionError as error:
        tell_torchrun(f"{command_line.prog}: error: {error}")
        command_line.error(str(error))
    except (ArithmeticError, OSError, RuntimeError, ValueError) as error:
        if os.environ.get("RECURRENCE_TRACEBACK") == "1":
            raise
        line = f"{command_line.prog}: error: {one_line(error)} (RECURRENCE_TRACEBACK=1 shows where)"
        tell_torchrun(line)
        sys.exit(line)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
