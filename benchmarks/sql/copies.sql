-- Many more waiting jobs, made of those that are there, without the store's own ways in.

-- name: columns
SELECT a.attname::text FROM pg_attribute AS a
WHERE a.attrelid = to_regclass(%(name)s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> 'id' ORDER BY a.attnum

-- name: draw
-- New ids of the same millisecond as those that are copied.
CREATE UNLOGGED TABLE copies AS
SELECT s.id AS seed, (left(s.id::text, 19) || right(gen_random_uuid()::text, 17))::uuid AS id
FROM headrace.ready AS s CROSS JOIN generate_series(1, {times})

-- name: copy
INSERT INTO {table} (id, {columns}) SELECT c.id, {columns_of_seed} FROM copies AS c JOIN {table} AS s ON s.id = c.seed
ORDER BY c.id

-- name: count
INSERT INTO headrace.deltas (qid, state, jobs)
SELECT s.qid, 0, count(*) FROM copies AS c JOIN headrace.ready AS s ON s.id = c.id GROUP BY s.qid

-- name: drop
DROP TABLE copies
