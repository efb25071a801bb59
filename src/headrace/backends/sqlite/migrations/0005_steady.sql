-- Since when a worker's beats have come without a gap.
ALTER TABLE workers ADD COLUMN steady_since INTEGER NOT NULL DEFAULT 0;
