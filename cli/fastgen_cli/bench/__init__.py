"""`fastgen bench`: loads an endpoint, and says how fast it answered."""
