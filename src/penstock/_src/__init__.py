"""Everything behind the public modules. Names in here may change at any time."""
