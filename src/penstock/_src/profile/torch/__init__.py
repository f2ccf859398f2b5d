"""Instruments a torch DataLoader; nothing here imports torch by itself."""
