"""Before a training: one folder from several layouts, voxels made in advance, a check of the whole."""
