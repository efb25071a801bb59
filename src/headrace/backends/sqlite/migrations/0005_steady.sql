-- Since when a worker's beats have come without a gap; and whether a running job had begun before its lease.
ALTER TABLE workers ADD COLUMN steady_since INTEGER NOT NULL DEFAULT 0;
ALTER TABLE running ADD COLUMN begun INTEGER NOT NULL DEFAULT 0;
