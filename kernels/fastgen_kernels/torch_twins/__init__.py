"""Every operation in plain torch: the reference for faster kernels, and what runs without them."""
