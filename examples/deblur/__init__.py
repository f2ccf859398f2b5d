"""Spike-guided motion deblurring on penstock's clip loaders: what train_deblur.py is made of."""
