"""One program per engine: it loads the model and answers lists of requests (`peers.protocol`)."""
