"""A store in shards, spread over the servers of a cluster. What concerns one shard is in the package above."""
