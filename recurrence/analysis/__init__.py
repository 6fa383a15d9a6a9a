"""Measurements inside trained models; the programs in `recipes/figures` plot them."""
