-- Jobs that were lost, which claims pass over when they have been lost too often; empty in good times.
CREATE INDEX IF NOT EXISTS ready_lost ON ready (lane, priority, run_at, lost) WHERE lost > 0;
