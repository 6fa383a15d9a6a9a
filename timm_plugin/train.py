"""Train any image classifier of timm or timm_plugin with timm's own loaders, tasks and optimisers.

    python -m timm_plugin.train DATA --model sret_t --output runs/sret_t [options]
    torchrun --nproc_per_node 2 -m timm_plugin.train DATA --model sret_t --output runs/sret_t [options]

`recipes/train_image.py` is the same program.

DATA has one folder (or one .tar file) of class folders per split; with --dataset it is the root of a torchvision data
set. --output receives last.pth.tar; model_best.pth.tar, which timm also names checkpoint-EPOCH.pth.tar; and
summary.csv, with one line per epoch, which includes a model's learnable residual coefficients. The same command with
--resume continues after the last complete epoch and ends with the same weights as an uninterrupted run, on a CPU bit
for bit.

The learning rate rises linearly to --lr during the warm-up, and then follows half a cosine to --min-lr. As in timm,
the cosine begins at the first update, so that after the warm-up the rate drops to where the cosine already is; with
--warmup-prefix the cosine begins after the warm-up, at --lr.

Differs from timm's train.py: the learning rate changes at every update; batches at the end of an epoch that do not fill
an update are skipped; crops are resized with the model's interpolation, not a random one; the average of the weights
has a warm-up; --warmup-prefix is part of --epochs; if there is an average, only the average is evaluated; and
distillation is SReT's (arXiv 2111.05297), from the teacher's soft labels only, or for comparison DeiT's, from hard
labels.
"""

import logging
import math
import os
import shlex
import signal
import sys
import time
from argparse import Namespace
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from pathlib import Path

import timm
import torch
from timm import utils
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn
from tqdm import tqdm

from recurrence.comparison.runs import locked
from recurrence.count import stored
from recurrence.errors import misfit
from recurrence.files import damage, make_folder, remove_unfinished
from recurrence.papers.sret import named_coefficients
from recurrence.private_torch import bound_caches
from timm_plugin import repairs
from timm_plugin._model import ImageModel
from timm_plugin._saved import is_literal, options_of
from timm_plugin.checkpoints import MALFORMED, metadata_of
from timm_plugin.training.build import build, make_task, origin, weights_not_found
from timm_plugin.training.data import datasets, make_loaders
from timm_plugin.training.files import last_checkpoint, one_line, record, report_to_torchrun
from timm_plugin.training.folders import different_classes, left_out, listed, unreadable
from timm_plugin.training.options import OptionError, check, parser, reject

logger = logging.getLogger("timm_plugin.train")
# Options that may change when a run is resumed. The world size may not, because the total batch scales with it.
PER_CALL = {"data", "output", "resume", "workers", "device", "compile", "distributed", "rank", "local_rank"}
PER_CALL |= {"user_module", "label_names"}  # the names are compared apart, as a run may be older than they
LOCK = ".training.lock"  # in the folder of a run; .lock is that of a recipe which starts the training
SILENCE = 30  # seconds without a word where there is no terminal for a progress bar


def make_scheduler(args: Namespace, optimizer: torch.optim.Optimizer, updates_per_epoch: int) -> Scheduler:
    """A linear rise from a thousandth of --lr to --lr, then half a cosine to --min-lr, stepped at every update.

    The cosine begins at the first update, so that the rate drops to it after the warm-up, unless --warmup-prefix is
    given.
    """
    scheduler, _ = create_scheduler_v2(
        optimizer,
        num_epochs=args.epochs - args.warmup_epochs if args.warmup_prefix else args.epochs,
        warmup_epochs=args.warmup_epochs,
        warmup_prefix=args.warmup_prefix,
        warmup_lr=args.lr / 1000,
        min_lr=args.min_lr,
        step_on_epochs=False,
        updates_per_epoch=updates_per_epoch,
    )
    return scheduler


def pace(seconds: float, done: int, total: int, images: int) -> str:
    """Images per second and the time left, for a message, after `done` of `total` parts of the work."""
    return f"{images / seconds:,.0f} images/s, {tqdm.format_interval(seconds / done * (total - done))} left"


def further(checkpoint: Path) -> str:
    """How to train a finished run further, for a message."""
    source = shlex.quote(f"checkpoint_path={checkpoint}")
    return f"to train further, start a new run with --model-kwargs {source}"


class Trainer:
    """Trains a task: builds the data, the model, the optimiser and the schedule from the options.

    Args:
        args: checked options, with the fields that timm's `init_distributed_device` adds. Added here are `num_classes`
            and `label_names`, the names of the classes in the order of the labels.
        device: to train on.

    Raises:
        OptionError: an option does not fit the data or the model, or an epoch has no complete update.
    """

    def __init__(self, args: Namespace, device: torch.device):
        self.args, self.device = args, device
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32, as in timm's trainer
        utils.random_seed(args.seed << 16)
        *sets, args.label_names = datasets(args)
        self.sets, args.num_classes = sets, len(args.label_names)
        if args.num_classes < 2:
            reject("train_split", args.train_split, f"must have at least two classes, not only {args.label_names[0]}")
        with weights_not_found() as missing:
            self.model = model = build("model", args, num_classes=args.num_classes).to(device)
        self.task = make_task(args, model, device)
        self.train_loader, self.val_loader = make_loaders(args, model, sets, device)
        # Per epoch; leftover batches that do not fill an update are skipped.
        self.updates = len(self.train_loader) // args.grad_accum_steps
        self.batch = args.batch_size * args.world_size
        if not self.updates:
            images, steps = len(self.train_loader.sampler), args.grad_accum_steps
            if steps > images:
                reject("grad_accum_steps", steps, f"must be <= {images}, the images per process")
            rule = f"must be <= {images // steps}, the images per process divided by --grad-accum-steps"
            reject("batch_size", args.batch_size, rule)
        updates = args.epochs * self.updates
        if args.rank == 0 and 0 < updates <= (args.depth_warmup_updates or 0):
            logger.warning(f"--depth-warmup-updates {args.depth_warmup_updates}: training ends after {updates} updates")
        if args.rank == 0 and not all(depth.trains_full for depth in getattr(model, "training_depths", ())):
            remedy = "" if model.config.pass_loss else "; --mixed-depth would"
            rule = f"no update runs all passes, with which the best epoch is chosen{remedy}"
            logger.warning(f"--depth-range {'-'.join(map(str, model.config.depth_range))}: {rule}")
        self.optimizer = create_optimizer_v2(model, args.opt, lr=args.lr, weight_decay=args.weight_decay)
        self.scheduler = make_scheduler(args, self.optimizer, self.updates)
        self.scaler = utils.NativeScaler(device.type) if args.amp == "float16" else None
        self.autocast = partial(torch.autocast, device.type, getattr(torch, args.amp or "float32"), bool(args.amp))
        # None shows the progress bar only on a terminal.
        self.bar = partial(tqdm, leave=False, unit="images", disable=None if args.rank == 0 else True)
        if args.model_ema_decay:
            self.task.setup_ema(decay=args.model_ema_decay, use_warmup=True)
        if args.compile and hasattr(model, "compile_blocks"):
            model.compile_blocks()
        elif args.compile:
            self.task.compile()
        counts = f"{len(sets[0]):,} images of --train-split {args.train_split} and {len(sets[1]):,} of {args.val_split}"
        logger.info(f"{args.data}: {args.num_classes:,} classes, {listed(args.label_names)}; {counts}")
        logger.info(f"{args.model}: {stored(model):,} stored parameters, {origin(args, model, missing)}")
        if args.rank == 0:
            for line in chain(*map(left_out, sets)):
                logger.warning(line)

    def learn(self, images: Tensor, targets: Tensor, update: int, last: bool) -> Tensor:
        """Accumulates the gradients of a batch and, if it is the last of an update, clips them and updates the weights.

        Args:
            update: the number of updates before this one.

        Returns:
            The mean loss of the batch.
        """
        if isinstance(self.model, ImageModel):
            self.model.set_num_updates(update)
        clip, parameters = self.args.clip_grad, list(self.task.get_clip_parameters())
        with nullcontext() if last else self.task.no_sync():
            with self.autocast():
                loss = self.task(images, targets)["loss"]
            scaled = loss / self.args.grad_accum_steps
            if self.scaler:
                self.scaler(scaled, self.optimizer, clip_grad=clip, parameters=parameters, need_update=last)
            else:
                scaled.backward()
        if not last:
            return loss.detach()
        if not self.scaler:
            if clip:
                utils.dispatch_clip_grad(parameters, clip)
            self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self, epoch: int) -> dict[str, float]:
        """Trains for one epoch (from 0).

        Returns:
            The mean loss, the number of updates since the start of training, and the seconds that the epoch took.

        Raises:
            ArithmeticError: the mean loss is not finite.
        """
        args, losses, start = self.args, utils.AverageMeter(), time.monotonic()
        utils.random_seed((args.seed << 16) + (epoch + 1) * args.world_size, args.rank)  # the same if resumed
        if args.distributed:
            self.train_loader.sampler.set_epoch((args.seed << 16) + epoch)  # timm orders images by this number alone
        self.task.train()
        total = self.updates * args.grad_accum_steps
        batches = islice(self.train_loader, total)
        batches = self.bar(batches, f"epoch {epoch + 1}", total=total, unit_scale=self.batch)
        said = start
        for number, (images, targets) in enumerate(batches, start=1):
            before = (epoch * total + number - 1) // args.grad_accum_steps
            updates, pending = divmod(epoch * total + number, args.grad_accum_steps)
            # On a CPU, --amp gives a loss in half precision, in which a sum of many loses what is added.
            loss = self.learn(images, targets, before, last=not pending).float()
            if not pending:
                self.task.update_ema(step=updates)
                self.scheduler.step_update(updates)
            losses.update(utils.reduce_tensor(loss, args.world_size) if args.distributed else loss)
            if batches.disable and time.monotonic() - said > SILENCE:
                said = time.monotonic()
                speed = pace(said - start, number, total, number * self.batch)
                logger.info(f"epoch {epoch + 1}, {number / total:.0%}: loss {float(losses.avg):.4f}, {speed} in it")
        if args.distributed:
            for ema in (False, True)[: 1 + self.task.has_ema()]:
                utils.distribute_bn(self.task.get_trainable_module(ema), args.world_size, reduce=True)
        if not math.isfinite(losses.avg):
            raise ArithmeticError(f"loss {losses.avg} in epoch {epoch + 1}: lower --lr, or set --clip-grad")
        return {"loss": float(losses.avg), "updates": updates, "seconds": round(time.monotonic() - start, 2)}

    @torch.inference_mode()
    def evaluate(self) -> dict[str, float]:
        """Loss, top-1 and top-5 accuracy (%), with the averaged weights if there are any.

        With elastic depth, also at the smallest and largest depth: smallest_depth_loss, largest_depth_top1 and so on.
        """
        self.task.eval()
        model = self.task.get_eval_model(ema=self.task.has_ema())
        full, looped = self.evaluate_at(model), utils.unwrap_model(model)  # of several processes
        depths, measured = getattr(looped, "training_depths", ()), dict(full)
        ends, whole = [depth.ends for depth in depths], tuple(len(depth.order) for depth in depths)
        if any(smallest != largest for smallest, largest in ends):
            for name, passes in zip(("smallest", "largest"), zip(*ends)):
                looped.passes = passes
                found = full if passes == whole else self.evaluate_at(model)
                measured |= {f"{name}_depth_{key}": value for key, value in found.items()}
            looped.passes = None
        return measured

    def evaluate_at(self, model: nn.Module) -> dict[str, float]:
        """Loss, top-1 and top-5 accuracy (%) of a model at its current depth."""
        evaluator = self.task.create_evaluator(max_samples=timm.task.evaluation_sample_limit(self.val_loader))
        for images, targets in self.bar(self.val_loader, "evaluation", unit_scale=self.batch):
            with self.autocast():
                output = model(images)
            evaluator.update(output, targets)
        return dict(evaluator.compute(distributed=self.args.distributed))

    def resume(self, path: Path) -> int:
        """Loads the complete training state of a checkpoint.

        Returns:
            The next epoch to train, from 0.

        Raises:
            OptionError: an option differs from the checkpoint's run, or the file is damaged or of another program.
        """
        if problem := damage(path):
            intact = sorted(other.name for other in path.parent.glob("*.pth.tar") if damage(other) is None)
            remedy = f"; {' and '.join(intact)} in the same folder could be renamed to it" if intact else ""
            reject("resume", path, f"is {problem}{remedy}")
        try:
            checkpoint, defaults = metadata_of(path), parser("")
            names = getattr(options_of(path, checkpoint.get("args", Namespace())), "label_names", self.args.label_names)
        except ValueError as error:
            raise OptionError(f"--resume {error}") from None
        if not {"args", "epoch"} <= checkpoint.keys():
            reject("resume", path, "must be a checkpoint of train_image.py")
        if difference := different_classes(names, self.args.label_names):
            reject("resume", path, f"its run had other classes than {self.args.data}, which {difference}")
        saved = vars(checkpoint["args"])
        for name, value in vars(self.args).items():
            before = saved.get(name, defaults.get_default(name))  # the run may be older than the option
            if name not in PER_CALL and not (is_literal(before) and before == value):
                if name == "world_size":  # which is no option
                    reject("resume", path, f"its run had {before} processes, this one has {value}: start as many again")
                more = f"; {further(path)}" if name == "epochs" else ""
                reject(name, value, f"must be {before}, as in the run of {path}{more}")
        try:
            epoch = timm.task.resume_task_checkpoint(self.task, path, self.optimizer, self.scaler)
            if self.task.has_ema():
                timm.task.load_task_ema_checkpoint(self.task, path)
        except MALFORMED as error:
            reason = misfit(error) or " ".join(str(error).split()) or type(error).__name__
            reject("resume", path, f"does not fit this run: {reason}")
        self.scheduler.step_update(epoch * self.updates)
        return epoch

    def reject_unreadable_images(self) -> None:
        """Reads all images once, unless those that cannot be read are to be skipped.

        Raises:
            OptionError: some cannot be read; their names and the reasons are logged.
        """
        args = self.args
        if repairs.SKIPPING in os.environ:
            return
        found: list[str] = []
        for images in self.sets:
            reasons = unreadable(images, args.workers, args.rank, args.world_size)
            found += filter(None, self.bar(reasons, "reading all images once", unit="images"))
        if args.distributed:
            shares: list[list[str]] = [[]] * args.world_size
            torch.distributed.all_gather_object(shares, found)
            found = list(chain(*shares))
        if found:
            for line in found if args.rank == 0 else ():
                logger.error(line)
            raise OptionError(f"DATA {args.data}: {len(found)} images cannot be read; {repairs.REMEDY}")

    def run(self) -> None:
        """Trains the remaining epochs, while no other training writes to the folder.

        Raises:
            ValueError: another one does.
        """
        last = last_checkpoint(self.args)
        start = self.resume(last) if last else 0
        if not start:
            self.reject_unreadable_images()
        held = f"--output {self.args.output}: another training is running there"
        with locked(Path(self.args.output) / LOCK, held) if self.args.rank == 0 else nullcontext():
            self.run_from(start, last)

    def run_from(self, start: int, last: Path | None) -> None:
        """Trains the epochs from this one on, after this checkpoint; evaluates, records and saves after each.

        An epoch's line is written before its checkpoint. If the run is killed in between, the resumed run repeats the
        epoch and replaces the line.
        """
        args, output = self.args, Path(self.args.output)
        table = output / "summary.csv"
        state = dict(args=args, amp_scaler=self.scaler, task=self.task, checkpoint_dir=args.output, max_history=1)
        saver = utils.CheckpointSaver(self.task.get_eval_model(), self.optimizer, **state)
        if args.rank == 0:
            make_folder(output)
            remove_unfinished(output)
            record(table, start)
            if start:
                saver.load_state_dict_from_checkpoint(last)
        if args.distributed:
            idle = isinstance(self.model, ImageModel) and self.model.may_idle()
            devices = [self.device] if self.device.type == "cuda" else None
            self.task.prepare_distributed(device_ids=devices, find_unused_parameters=idle)
        if args.resume:
            logger.info(f"{last}: continues after epoch {start}" if last else f"{output}: has no run yet; begins one")
        if start >= args.epochs:
            logger.info(f"{output}: has all of its {args.epochs} epochs; {further(last)}")
        began = time.monotonic()
        for epoch in range(start, args.epochs):
            trained, tested = self.train(epoch), self.evaluate()
            if args.rank == 0:
                record(table, epoch, self.summary(epoch, trained, tested))
                saver.save_checkpoint(epoch, metric=tested["top1"])
                results = f"loss {trained['loss']:.4f}, top-1 {tested['top1']:.2f} %, {trained['seconds']:.1f} s"
                done, images = epoch + 1 - start, self.updates * args.grad_accum_steps * self.batch
                speed = pace(time.monotonic() - began, done, args.epochs - start, done * images)
                logger.info(f"epoch {epoch + 1} of {args.epochs}: {results}, {speed}")

    def summary(self, epoch: int, trained: dict[str, float], tested: dict[str, float]) -> dict[str, float]:
        """The line of summary.csv for an epoch."""
        trained = {**trained, **named_coefficients(self.model)}
        return {
            "epoch": epoch,
            **{f"train_{name}": value for name, value in trained.items()},
            **{f"eval_{name}": value for name, value in tested.items()},
            "lr": self.optimizer.param_groups[0]["lr"],
        }


def main() -> None:
    bound_caches()
    repairs.apply()
    repairs.reject_unreadable_images()
    command_line = parser(__doc__)
    args = command_line.parse_args()
    try:
        check(args)
        args.data = os.path.abspath(args.data)  # which timm_plugin.accuracy reads, from whatever folder
        device = utils.init_distributed_device(args)
        utils.setup_default_logging(logging.WARNING)
        logger.setLevel(logging.INFO if args.rank == 0 else logging.WARNING)
        Trainer(args, device).run()
    except OptionError as error:
        report_to_torchrun(f"{command_line.prog}: error: {error}")
        command_line.error(str(error))
    except (ArithmeticError, AssertionError, OSError, RuntimeError, ValueError) as error:
        if os.environ.get("RECURRENCE_TRACEBACK") == "1":
            raise
        line = f"{command_line.prog}: error: {one_line(error)} (RECURRENCE_TRACEBACK=1 shows where)"
        report_to_torchrun(line)
        sys.exit(line)
    except KeyboardInterrupt:
        print(f"{command_line.prog}: stopped; --resume continues after the last complete epoch", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
