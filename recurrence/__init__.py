"""Depth recurrence for transformers, in pure PyTorch: a few stored blocks, an order in which they run, and a few
parameters that belong to a single pass.

Letters in shapes: B batch, T target length, S source length, C width, H heads, P passes. A mask's True means padding;
rates are within [0, 1].
"""
