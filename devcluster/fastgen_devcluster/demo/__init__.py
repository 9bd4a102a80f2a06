"""`make demo`: the whole product on one machine, shown to a person."""
