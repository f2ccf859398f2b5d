"""VQA data sets for training: preloaded, lazy or streaming; one sample is a question, its answer and its image."""
