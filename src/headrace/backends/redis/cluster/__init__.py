"""A store in shards, which the servers of a cluster share out among them."""
