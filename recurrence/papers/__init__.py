"""One file per paper: its block, what a pass owns, and a function that builds the loop.

Beside them is what belongs to one paper: `admin` (Takase & Kiyono), `slices` (SReT), and `scan`, `scan_step`,
`streaming` and `cuda_graph` (Kausik).

These functions share some arguments: `shape`, sizes and rates of a block; `order`, the block that runs in each pass;
and `**parts`, further arguments of the block. They raise FieldError where a value breaks its rule, and ValueError if
the order leaves a block out.
"""
