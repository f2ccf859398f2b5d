"""Random access to HDF5 files."""
