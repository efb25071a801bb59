-- The hour, since 1970, of the oldest object that a cell of the job refers to; so far it was the day.
ALTER TABLE jobs RENAME COLUMN object_day TO object_hour;

UPDATE jobs SET object_hour = object_hour * 24 WHERE object_hour IS NOT NULL;
