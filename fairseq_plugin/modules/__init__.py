"""fairseq's interfaces around a loop: options, input and output layers, encoder, decoder, models."""
