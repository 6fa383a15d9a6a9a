"""What only fairseq needs: token inputs, the encoder and decoder interfaces around a loop, options."""
