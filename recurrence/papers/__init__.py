"""One file per paper: its block, what a pass owns, and a function that builds the loop.

These functions share some arguments: `shape`, sizes and rates of a block; `order`, the block that runs in each pass;
`drop_path`, one rate per pass, or None for none; and `**parts`, further arguments of the block. They raise FieldError
where a value breaks its rule, and ValueError if the order leaves a block out.
"""
