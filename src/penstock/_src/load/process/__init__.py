"""The engine in a process of its own: it fetches and decodes, while the training process takes batches from memory."""
