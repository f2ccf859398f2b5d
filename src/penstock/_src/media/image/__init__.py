"""Single images: JPEG, PNG, TIFF, RVL, depth and raw pixels."""
