"""One file per paper: its block, what a pass owns, and a function that builds the loop.

These functions share some arguments: `shape`, sizes and rates of a block; `order`, the block that runs in each pass;
and `**parts`, further arguments of the block. They raise FieldError where a value breaks its rule, and ValueError if
the order leaves a block out.
"""
