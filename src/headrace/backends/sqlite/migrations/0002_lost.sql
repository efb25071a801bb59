-- Jobs that were lost at least once. Claims pass over those that were lost too often. Mostly empty.
CREATE INDEX IF NOT EXISTS ready_lost ON ready (lane, priority, run_at, lost) WHERE lost > 0;
