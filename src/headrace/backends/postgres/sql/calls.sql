-- What the client sends: one call each. The functions are in the migrations, with the indexes that they rely on.

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: insert
SELECT * FROM {schema}.insert_v1(%b, %b, %b, true)

-- name: insert_new
SELECT * FROM {schema}.insert_v1(%b, %b, %b, true, p_new => true)

-- name: claim
SELECT * FROM {schema}.claim_v1(
    %b, %b, %b, %b::integer, %b::bigint, %b::smallint, %b::integer, %b::bigint, true, %b, %b, %b, %b, %b
)

-- name: turn
SELECT * FROM {schema}.turn_v1(
    %b, %b, %b, %b, %b, %b, %b, %b, %b, %b::integer, %b::bigint, %b::smallint, %b::integer, %b::bigint,
    %b, %b, %b, %b, %b
)

-- name: seal
SELECT {schema}.seal_v1()

-- name: complete
SELECT * FROM {schema}.complete_v1(%b, %b, %b, %b, %b, %b, %b)

-- name: finish
SELECT * FROM {schema}.finish_v1(%b, %b, %b, %b)

-- name: finish_and_claim
SELECT * FROM {schema}.finish_v1(%b, %b, %b, %b)
UNION ALL
SELECT * FROM {schema}.claim_v1(
    %b, %b, %b, %b::integer, %b::bigint, %b::smallint, %b::integer, %b::bigint, true, %b, %b, %b, %b, %b
)

-- name: renew
SELECT * FROM {schema}.renew_v1(
    %b, %b, %b, %b, %b::bigint, %b, %b, %b::bigint, %b::integer, %b::integer, %b, %b::bigint, %b::bigint, %b::integer
)

-- name: reap
SELECT * FROM {schema}.reap_v1(
    %b, %b::integer, %b::integer, %b::bigint, %b, %b::bigint, %b::bigint
)

-- name: set_aside
SELECT * FROM {schema}.set_aside_v1(%b)

-- name: configure
SELECT {schema}.configure_v1(%b, %b, %b, %b, %b, %b::bigint)

-- name: alter
SELECT * FROM {schema}.alter_v1(
    %b,
    ARRAY(SELECT m.id FROM {schema}.matching_v1(
        %b, %b, %b, %b, %b, %b, %b, %b, %b, %b::bigint, %b, %b, %b::integer, %b, %b, %b
    ) AS m),
    %b::integer, %b, %b::bigint, %b, %b, %b, %b, false, %b
)

-- name: ask
SELECT * FROM {schema}.ask_v1(
    %b, %b, %b, %b, %b, %b, %b, %b, %b, %b::bigint, %b, %b, %b::integer, %b, %b, %b::integer, %b, %b
)

-- name: scan
SELECT * FROM {schema}.fetch_v1(
    %b,
    ARRAY(SELECT m.id FROM {schema}.matching_v1(
        %b, %b, %b, %b, %b, %b, %b, %b, %b, %b::bigint, %b, %b, %b::integer, %b, %b, %b
    ) AS m),
    '{}', '{}', 0::smallint, false, false
)

-- name: fetch
SELECT * FROM {schema}.fetch_v1(%b, %b, %b, %b, %b::smallint, %b, %b)

-- name: sweep
SELECT * FROM {schema}.sweep_v1(%b, %b::smallint, %b::bigint, %b::bigint, %b::bigint, %b::integer, %b, %b::bigint)

-- name: sweep_keys
SELECT * FROM {schema}.sweep_keys_v1(%b, %b::bigint, %b::integer, %b)

-- name: sweep_results
SELECT * FROM {schema}.sweep_results_v1(%b, %b::integer, %b)

-- name: sweep_tenants
SELECT * FROM {schema}.sweep_tenants_v1(%b, %b::integer, %b)

-- name: begin_duty
SELECT {schema}.begin_duty_v1(%b, %b)

-- name: end_duty
SELECT {schema}.end_duty_v1(%b, %b, %b, %b)

-- name: holders
SELECT {schema}.holders_v1()

-- name: make_day
SELECT {schema}.make_day_v1(%b)

-- name: drop_day
SELECT {schema}.drop_day_v1(%b, %b::smallint, %b::bigint)

-- name: settle_day
SELECT * FROM {schema}.settle_day_v1(%b::integer)

-- name: forget_queues
SELECT {schema}.forget_queues_v1(%b)

-- name: stats
SELECT * FROM {schema}.stats_v1(%b, %b::integer, %b::text[])

-- name: workers
SELECT worker, queues, slots, busy, started_at, seen_at FROM {schema}.workers_v1(%b)

-- name: ranks
SELECT * FROM {schema}.ranks_v1(%b, %b)

-- name: places
SELECT * FROM {schema}.places_v2()

-- name: save
SELECT {schema}.save_v1(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b)

-- name: find
SELECT * FROM {schema}.find_v1(%b, %b, %b, %b, %b::integer)

-- name: due
SELECT * FROM {schema}.due_v1(%b, %b::integer, %b::integer, %b::integer)

-- name: plan
SELECT * FROM {schema}.plan_v1(
    %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b
)

-- name: history
SELECT * FROM {schema}.history_v1((%b::uuid[])[1], %b::bigint, %b::integer)

-- name: note
SELECT {schema}.note_v1(%b, %b, %b, %b, %b)

-- name: sweep_ticks
SELECT * FROM {schema}.sweep_ticks_v1(%b, %b::bigint, %b::bigint, %b::bigint, %b::integer, %b)

-- name: save_policy
SELECT {schema}.save_policy_v1(
    %b, %b, %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b, %b, %b, %b::bigint,
    %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b
)

-- name: limit_tenant
SELECT {schema}.limit_tenant_v1(%b, %b, %b, %b::bigint, %b::bigint, %b::bigint)

-- name: policies
SELECT * FROM {schema}.policies_v1(%b, %b)

-- name: tenants
SELECT * FROM {schema}.tenants_v1(%b, %b, %b, %b, %b::integer)

-- name: group
SELECT * FROM {schema}.group_v1(%b, %b, %b::integer)

-- name: bulk_begin
SELECT
    coalesce(%b::bigint, {schema}.now_us()), {schema}.queue_ids(n.names),
    EXISTS (SELECT 1 FROM {schema}.policies AS p WHERE p.queue = ANY (n.names || ''::text))
FROM (SELECT %b::text[] AS names) AS n

-- name: bulk_jobs
COPY {schema}.jobs (
    id, enqueued_at, expires_at, timeout, result_ttl, max_attempts, task, tenant, headers,
    parameters, vm_state, metadata, blob
) FROM STDIN (FORMAT BINARY)

-- name: bulk_ready
COPY {schema}.ready (run_at, id, epoch, qid, attempt, lost, size, priority, keyed, lane, dies_at) FROM STDIN (FORMAT BINARY)

-- name: bulk_end
INSERT INTO {schema}.deltas (qid, state, jobs) SELECT n.qid, 0, n.jobs FROM unnest(%b, %b) AS n (qid, jobs)
