"""Models of this plugin as the host's own and back; `python -m fairseq_plugin.convert` is the command line."""
