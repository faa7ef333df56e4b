"""`sweep`, our own join and the default: its cache, the division of its budget, and the join itself."""
