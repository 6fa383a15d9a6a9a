"""The registered image models, small instances of each, and inputs."""

import timm
from timm.models import model_entrypoint

import timm_plugin  # noqa: F401  registers our models

MODELS = [name for name in timm.list_models() if model_entrypoint(name).__module__.startswith("timm_plugin.")]
MODULES = sorted({model_entrypoint(name).__module__.removeprefix("timm_plugin.") for name in MODELS})
