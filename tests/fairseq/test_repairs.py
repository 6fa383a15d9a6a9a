"""Repairs of fairseq: each repairs its defect, and changes nothing in a fairseq without it."""

import functools
import importlib
import inspect
import json
import logging
import pickle
import pkgutil
import subprocess
import sys
import weakref
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.distributed import utils as distributed_utils
from fairseq.search import DiverseBeamSearch
from fairseq.trainer import Trainer
from fairseq_cli import train, validate

from fairseq_plugin import repairs
from fairseq_plugin.repairs import commands, decoding, parallel
from fairseq_plugin.repairs.checkpoints import load_safely
from tests.support import cli, models, searching

# Compares what torch, numpy and fairseq, and their classes, hold before and after the plugin is imported, twice over.
INSPECT = """
import json, sys
import fairseq.trainer, torch, numpy

def snapshot(*packages):
    modules = [name for name in sys.modules if name.split(".")[0] in packages]
    found = {f"{name}:{key}": value for name in modules for key, value in list(vars(sys.modules[name]).items())}
    classes = {key: value for key, value in found.items() if isinstance(value, type)}
    return found | {f"{key}.{name}": value for key, owner in classes.items() for name, value in vars(owner).items()}

def allowed():
    globals_ = torch.serialization.get_safe_globals()
    return {x[1] if isinstance(x, tuple) else f"{x.__module__}.{x.__qualname__}" for x in globals_}

before, upstream, torch_s_own = snapshot("torch", "numpy"), snapshot("fairseq"), allowed()
from fairseq_plugin import repairs
changed = lambda old, new: sorted(key for key in old if key not in new or new[key] is not old[key])
foreign, repaired = changed(before, snapshot("torch", "numpy")), snapshot("fairseq")
repairs.apply()
print(json.dumps(dict(foreign=foreign, again=changed(repaired, snapshot("fairseq")), mended=changed(upstream, repaired),
                      allowed=sorted(allowed() - torch_s_own))))
"""


def arguments(*flags: str) -> Namespace:
    """Options of fairseq-train as it parses them."""
    return options.parse_args_and_arch(options.get_training_parser(), ["data", "--arch", "transformer", *flags])


@pytest.fixture
def launched(monkeypatch) -> None:
    """The environment of the second of two processes that torchrun has started."""
    for name, value in zip(parallel.LAUNCHER_VARIABLES, ("localhost", "29500", "1", "2"), strict=True):
        monkeypatch.setenv(name, value)


class TestApply:
    @pytest.fixture(scope="class")
    @staticmethod
    def seen() -> dict[str, list[str]]:
        return json.loads(cli.python("-W", "ignore", "-c", INSPECT, fresh=True).splitlines()[-1])

    def test_torch_and_numpy_stay_as_they_are(self, seen):
        allowed_by_design = "torch._weights_only_unpickler:_marked_safe_globals_set"
        assert [name for name in seen["foreign"] if name != allowed_by_design] == []

    def test_only_the_types_of_fairseq_s_own_checkpoints_are_allowed(self, seen):
        assert seen["allowed"] == [
            "argparse.Namespace",
            "fairseq.data.dictionary.Dictionary",
            "numpy._core.multiarray._reconstruct",
            "numpy.core.multiarray._reconstruct",
            "numpy.dtype",
            "numpy.dtypes.Float64DType",
            "numpy.dtypes.Int64DType",
            "numpy.ndarray",
        ]

    def test_applying_again_changes_nothing(self, seen):
        mended = {"fairseq.checkpoint_utils:load_checkpoint_to_cpu", "fairseq.trainer:Trainer.load_checkpoint"}
        assert mended <= set(seen["mended"])
        assert seen["again"] == []

    def test_every_repair_is_in_the_list(self):
        names = (module.name for module in pkgutil.iter_modules(repairs.__path__))
        modules = [importlib.import_module(f"fairseq_plugin.repairs.{name}") for name in names]
        functions = {
            function
            for module in modules
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if function.__module__ == module.__name__ and not name.startswith("_")
        }
        without_arguments = inspect.Signature(return_annotation=None)
        found = {function for function in functions if inspect.signature(function) == without_arguments}
        assert set(repairs.REPAIRS) == found


@pytest.mark.slow
def test_the_package_prints_only_its_folder():
    command = [sys.executable, "-m", "fairseq_plugin"]
    done = subprocess.run(command, cwd=cli.REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    assert done.stdout.decode() == f"{cli.PLUGIN}\n"


class TestCheckpoints:
    def test_a_file_that_is_not_a_checkpoint_is_named(self, tmp_path):
        path = tmp_path / "text.pt"
        path.write_text("not a checkpoint")
        with pytest.raises(pickle.UnpicklingError, match=f"^{path}: not a checkpoint that can be read safely"):
            checkpoint_utils.load_checkpoint_to_cpu(str(path))

    @pytest.mark.parametrize("state", [{"state_dict": {}}, torch.zeros(3), [1]], ids=["other keys", "tensor", "list"])
    def test_another_programs_checkpoint_is_named(self, state, tmp_path):
        path = tmp_path / "other.pt"
        torch.save(state, path)
        for load in (checkpoint_utils.load_checkpoint_to_cpu, load_safely):
            with pytest.raises(pickle.UnpicklingError, match=f"^{path}: not a checkpoint of fairseq "):
                load(str(path))

    def test_a_checkpoint_without_weights_is_named(self, tmp_path):
        torch.save({"args": None, "model": [1]}, tmp_path / "other.pt")
        with pytest.raises(pickle.UnpicklingError, match=f"^{tmp_path}/other.pt: not a checkpoint of fairseq .*model"):
            load_safely(tmp_path / "other.pt")

    def test_types_that_others_disallow_are_allowed_again(self, tmp_path):
        path = tmp_path / "options.pt"
        torch.save({"args": Namespace(arch="cycle"), "model": {}}, path)
        with torch.serialization.safe_globals([Namespace]):  # as timm reads its checkpoints
            pass
        assert Namespace not in torch.serialization.get_safe_globals()
        assert load_safely(path)["args"].arch == "cycle"

    def test_types_of_a_broadcast_are_not_allowed_in_files(self, tmp_path):
        path = tmp_path / "config.pt"
        torch.save({"cfg": convert_namespace_to_omegaconf(arguments())}, path)
        with pytest.raises(pickle.UnpicklingError, match=r"refers to \S*DictConfig"):
            checkpoint_utils.load_checkpoint_to_cpu(str(path))

    def test_a_broadcast_keeps_the_order_of_a_loop(self):
        weights, tensors = models.tiny("cycle").state_dict(), []
        sent = distributed_utils._split_tensors_from_obj({"model": weights}, tensors)
        received = distributed_utils._put_tensors_in_obj(sent, tensors)["model"]
        assert received.keys() == weights.keys()
        assert received._metadata == weights._metadata


class TestNgrams:
    @staticmethod
    def banned(block, tokens: torch.Tensor, step: int) -> list[set[int]]:
        rows = len(tokens)
        lprobs = block(tokens, torch.zeros(rows, 9), bsz=rows, beam_size=1, step=step)
        return [set(row.isneginf().nonzero().flatten().tolist()) for row in lprobs]

    @staticmethod
    def expected(words: list[int], n: int) -> set[int]:
        """Words that would complete an n-gram once more; the opening symbol is no word of a unigram."""
        words = words[1:] if n == 1 else words
        seen = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        return {word for word in range(9) if tuple(words[len(words) - n + 1 :]) + (word,) in seen}

    @pytest.mark.parametrize("n", [1, 2, 3, 4])
    def test_bans_what_would_repeat(self, n):
        block, chance = decoding.NGramRepeatBlock(n, use_extension=False), torch.Generator().manual_seed(n)
        some_banned = False
        for step in range(12):
            tokens = torch.full((5, 14), 1)
            tokens[:, : step + 1] = torch.randint(4, 7, (5, step + 1), generator=chance)
            tokens[:, 0] = 2
            found = self.banned(block, tokens, step)
            assert found == [self.expected(row[: step + 1].tolist(), n) for row in tokens]
            some_banned |= any(found)
        assert some_banned

    def test_a_prefix_may_repeat(self):
        """Each row repeats "5 6"; in the first, only this word is possible."""
        block = decoding.NGramRepeatBlock(2, use_extension=False)
        lprobs = torch.zeros(2, 9)
        lprobs[0, torch.arange(9) != 6] = float("-inf")
        found = block(torch.tensor([[2, 5, 6, 5, 1]] * 2), lprobs, bsz=2, beam_size=1, step=3)
        assert found[0].isfinite().nonzero().tolist() == [[6]]
        assert found[1].isneginf().nonzero().tolist() == [[6]]


def test_diverse_beams_of_a_sentence_are_those_that_it_has_alone():
    rows, source = searching.sources("ringformer_tiny")
    collate = models.modality_of("ringformer_tiny").collate_source
    model, entries = searching.varied_model("ringformer_tiny"), models.dictionary(models.TARGET_SYMBOLS)
    strategy = DiverseBeamSearch(entries, num_groups=2, diversity_strength=0.5)
    search = searching.search(model, search_strategy=strategy)
    numbers = torch.tensor([2, 0, 9, 1])  # in the corpus
    batch = {"id": numbers, "net_input": dict(zip(("src_tokens", "src_lengths"), source))}
    alone = [searching.translate(search, collate([row]))[0] for row in rows]
    searching.expect_equal(search.generate([], batch), alone)


class TestLog:
    @pytest.fixture(autouse=True)
    def root(self):
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        yield root
        root.handlers[:], root.level = handlers, level

    @pytest.mark.parametrize(
        ("command", "handlers", "level", "mended"),
        [
            ("/usr/bin/fairseq-preprocess", [logging.NullHandler()], logging.WARNING, True),
            ("/lib/fairseq_cli/eval_lm.py", [logging.NullHandler()], logging.WARNING, True),
            ("/usr/bin/fairseq-generate", [], logging.WARNING, False),  # it configures its own later
            ("/usr/bin/fairseq-train", [logging.NullHandler()], logging.INFO, False),
            ("/usr/bin/jupyter", [logging.NullHandler()], logging.WARNING, False),
        ],
    )
    def test_only_a_silenced_command_is_repaired(self, root, monkeypatch, command, handlers, level, mended):
        monkeypatch.setattr(sys, "argv", [command])
        root.handlers[:] = handlers
        root.setLevel(level)
        commands.restore_cli_logging()
        assert root.level == (logging.INFO if mended else level)
        assert (root.handlers != handlers) == mended


def test_bf16_needs_no_tpu():
    assert (arguments("--bf16").bf16, arguments("--bf16").tpu) == (True, False)
    assert arguments("--bf16", "--tpu").tpu is True


MEETING = "--distributed-world-size 2 --distributed-init-method tcp://localhost:29511"


class TestParallel:
    @staticmethod
    def config(*flags: str):
        return convert_namespace_to_omegaconf(arguments("--cpu", *flags))

    def test_ranks_without_a_launcher_meet_at_a_free_port(self):
        distributed = self.config("--distributed-world-size", "2").distributed_training
        parallel._prepare_cpu(distributed)
        assert distributed.distributed_init_method.startswith("tcp://localhost:")

    @pytest.mark.parametrize(
        ("flags", "program", "message"),
        [
            ("--distributed-world-size 0", train, "--distributed-world-size 0: must be >= 1"),
            (MEETING, validate, "--distributed-world-size 2: must be 1; on a CPU, only training"),
        ],
    )
    def test_what_a_cpu_cannot_do_is_rejected(self, flags, program, message):
        with pytest.raises(ValueError, match=f"^{message}"):
            distributed_utils.call_main(self.config(*flags.split()), program.main)

    def test_other_commands_stay_in_one_process(self, launched):
        cfg, calls = self.config(), []
        distributed_utils.call_main(cfg, lambda cfg: calls.append(cfg))
        assert calls == [cfg]
        assert cfg.distributed_training.distributed_init_method is None

    def test_started_processes_of_a_program_keep_their_ranks(self, monkeypatch):
        cfg, calls = self.config(*MEETING.split(), "--distributed-no-spawn"), []
        monkeypatch.setattr(distributed_utils, "distributed_main", lambda *given: calls.append(given))

        def main(cfg):
            pass

        distributed_utils.call_main(cfg, main)
        distributed_utils.call_main(cfg, functools.partial(main))
        assert [(given[0], given[2]) for given in calls] == [(0, cfg), (0, cfg)]

    def test_a_rank_leaves_its_process_groups(self):
        meeting = ("--distributed-init-method", f"tcp://localhost:{parallel._free_port()}")
        alone = ("--distributed-rank", "0", "--distributed-world-size", "1", "--distributed-backend", "gloo")
        seen = []

        def main(cfg):
            group = distributed_utils.get_global_group()
            distributed_utils.all_gather_list(1.5, group)
            seen.extend([torch.distributed.is_initialized(), weakref.ref(group)])

        distributed_utils.distributed_main(0, main, self.config(*meeting, *alone), {})
        assert seen[0]
        assert seen[1]() is None
        assert not torch.distributed.is_initialized()
        assert not hasattr(distributed_utils.get_global_group, "_global_group")

    def test_a_launched_process_that_would_train_alone_is_rejected(self, launched, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["/usr/bin/fairseq-hydra-train"])
        with pytest.raises(ValueError, match=r"distributed_world_size=1: 2 processes were launched"):
            Trainer(self.config(), None, None, None)
