"""The trainer `python -m timm_plugin.train` under its path, for torchrun and the recipes."""

from timm_plugin.train import main

if __name__ == "__main__":
    main()
