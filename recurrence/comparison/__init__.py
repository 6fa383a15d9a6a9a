"""Should I loop on my data? A looped model against controls of equal storage, operations and time.

`python -m fairseq_plugin.compare` and `python -m timm_plugin.compare` derive the controls, train and score them with
their own trainers, and report here.
"""
