"""Other autoscalers, from their published rules: each a pure function with its defaults."""
