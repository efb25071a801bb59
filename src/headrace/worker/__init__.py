"""What a worker does with a job: claim, run, judge, settle; leases, renewals and what comes back from dead workers."""
