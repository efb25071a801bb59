"""A store in shards, spread over the servers of a cluster."""
