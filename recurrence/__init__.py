"""Depth recurrence for transformers, in pure PyTorch: a few stored blocks, an order in which they run, and a few
parameters that belong to a single pass.

Letters in shapes: B batch, T target length, S source length, C width, H heads, P passes, L tokens so far, K projections
stacked in one weight. N is explained where it is used: tokens of an image, rows B T, or steps of a scan. True in a mask
means padding; rates are within [0, 1].
"""
