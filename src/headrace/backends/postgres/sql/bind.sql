-- What is sent on connections that are not ours: one text goes, one text comes, whatever types the connection knows.

-- name: enqueue
SELECT CAST(coalesce(
    jsonb_agg(jsonb_build_array(e.id, e.status, e.state, e.attempt, encode(e.result, 'base64')) ORDER BY e.ord), '[]'
) AS text)
FROM {schema}.enqueue_v1(CAST(CAST({given} AS text) AS jsonb), false) AS e

-- name: complete
SELECT {schema}.complete_bound_v1(
    CAST(g.job ->> 'id' AS uuid), CAST(g.job ->> 'epoch' AS bigint), g.job ->> 'holder',
    decode(g.job ->> 'result', 'base64'), CAST(g.job ->> 'result_ttl' AS bigint),
    CAST(g.job ->> 'floor' AS bigint)
)
FROM (SELECT CAST(CAST({given} AS text) AS jsonb) AS job) AS g

-- name: sources
SELECT CAST(coalesce(jsonb_agg(s.source), '[]') AS text) FROM {schema}.sources_v1(CAST({given} AS text)) AS s

-- name: positions
SELECT CAST(coalesce(jsonb_object_agg(p.part, p.next), '{}') AS text) FROM {schema}.positions_v1(CAST({given} AS text)) AS p

-- name: advance
SELECT CAST({schema}.advance_v1(g.given ->> 'source', g.given -> 'steps') AS text)
FROM (SELECT CAST(CAST({given} AS text) AS jsonb) AS given) AS g
