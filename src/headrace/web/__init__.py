"""HTTP: health, metrics, numbers for autoscalers, and the admin API."""
