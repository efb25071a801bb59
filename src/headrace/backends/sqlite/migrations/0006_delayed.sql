-- Delayed jobs wait apart: beside each lane there is a lane of delayed jobs. Its number is -2**40 - lane, and every
-- priority in it is 0.
UPDATE jobs SET lane = -1099511627776 - lane
WHERE seq IN (SELECT r.seq FROM ready AS r WHERE r.lane > 0 AND r.run_at > unixepoch('now', 'subsec') * 1000000);

UPDATE ready SET lane = -1099511627776 - lane, priority = 0
WHERE lane > 0 AND seq IN (SELECT j.seq FROM jobs AS j WHERE j.lane < -1099511627776);
