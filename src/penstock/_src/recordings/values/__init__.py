"""What messages mean: vectors, images, video packets, transforms."""
