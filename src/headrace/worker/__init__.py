"""What a worker does: it claims jobs, runs and judges them, settles them, and renews their leases meanwhile. Nothing
here knows an app: tasks come as handlers."""
