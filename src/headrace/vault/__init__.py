"""The vault: what has ended, for good, as Parquet files in an object store. Nothing here removes a job from a store."""
