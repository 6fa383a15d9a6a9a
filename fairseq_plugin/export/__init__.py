"""Conversion of models to and from fairseq's own; `python -m fairseq_plugin.convert` is the command."""
