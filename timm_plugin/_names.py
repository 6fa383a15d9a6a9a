"""timm's names of the parts of a transformer block, which SReT's published code uses, too."""

BLOCK = {  # theirs -> ours
    "norm1": "norms.0",
    "attn.qkv": "self_attn.qkv",
    "attn.proj": "self_attn.out",
    "norm2": "norms.1",
    "mlp.fc1": "ffn.up",
    "mlp.fc2": "ffn.down",
}
