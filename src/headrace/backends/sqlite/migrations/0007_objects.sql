-- The day, since 1970, of the oldest object that a cell of the job refers to.
ALTER TABLE jobs ADD COLUMN object_day INTEGER;

CREATE INDEX jobs_objects ON jobs (object_day, id) WHERE object_day IS NOT NULL;
