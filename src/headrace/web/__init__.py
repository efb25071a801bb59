"""HTTP: health, metrics, numbers for autoscalers, and the admin API. Nothing here changes a store by
itself."""
