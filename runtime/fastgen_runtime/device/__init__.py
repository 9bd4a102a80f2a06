"""What computes steps, and the only place where torch is imported."""
