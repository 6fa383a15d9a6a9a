"""Models of this plugin as fairseq's own and back; `python -m fairseq_plugin.convert` is the command line."""
