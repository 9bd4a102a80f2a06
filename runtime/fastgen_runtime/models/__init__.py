"""What a checkpoint says about its model: configuration, tensors, memory."""
