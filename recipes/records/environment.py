"""Prints the environment of a run as JSON: versions, device, threads and commit."""

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("torch", "fairseq-fixed", "fairseq", "timm", "torchvision", "numpy", "sacrebleu", "sentencepiece")


def version(package: str) -> str | None:
    """The installed version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name from /proc/cpuinfo, or its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit() -> str:
    """The short hash of the checkout's commit, with + for uncommitted changes; "none" outside a checkout."""
    here = Path(__file__).parent
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"


def environment() -> dict:
    """The environment as JSON values."""
    threads = torch.get_num_threads()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := version(name))},
        "device": gpu or f"{processor()}, {threads} thread{'s' if threads > 1 else ''}",
        "threads": threads,
        "cores": os.cpu_count(),
        "commit": commit(),
    }


if __name__ == "__main__":
    print(json.dumps(environment(), indent=2))
