"""Before a training: one folder from several layouts, voxels made in advance, a check of the whole."""

CHECK_PARTS = ("configuration", "files", "sample", "steps")  # of `penstock check`, in their order
