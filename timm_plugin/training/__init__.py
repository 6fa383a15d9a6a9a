"""The parts of :mod:`timm_plugin.train`: its options, data, tasks and files."""
