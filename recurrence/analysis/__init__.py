"""Measurements inside models.

The programs in `recipes/figures`, and a loss in training, read what `record` records; `depth_curve` belongs to the
plugins' depth commands.
"""
