-- What the client sends: one call each. The functions are in the migrations, with the indexes that they rely on.

-- name: functions
-- Each line is ``SELECT * FROM {schema}.NAME_v1(…)``.
-- jobs
claim(%b, %b, %b, %b::integer, %b::bigint, %b::smallint, %b::integer, %b::bigint, true, %b, %b, %b, %b, %b)
complete(%b, %b, %b, %b, %b, %b, %b)
finish(%b, %b, %b, %b)
reap(%b, %b::integer, %b::integer, %b::bigint, %b, %b::bigint, %b::bigint)
set_aside(%b)
pause(%b, %b, %b, %b, %b, %b::bigint)
ask(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b::bigint, %b, %b, %b::integer, %b, %b, %b::integer, %b, %b)
fetch(%b, %b, %b, %b, %b::smallint, %b, %b)
ending(%b)
send_parts(%b, %b, %b, %b, %b, %b::bigint, %b::integer)
read_parts(%b, %b::bigint, %b::bigint, %b::integer)
-- queues and workers
stats(%b, %b::integer, %b::text[], %b::integer)
ranks(%b, %b)
places()
usage()
reserve(%b::bigint)
-- upkeep
sweep(%b, %b::smallint, %b::bigint, %b::bigint, %b::bigint, %b::integer, %b, %b::bigint, %b::bigint)
sweep_named(%b, %b::smallint, %b, %b, %b::bigint, %b, %b::bigint, %b::bigint)
sweep_keys(%b, %b::bigint, %b::integer, %b)
sweep_results(%b, %b::integer, %b)
sweep_tenants(%b, %b::integer, %b)
begin_duty(%b, %b)
end_duty(%b, %b, %b, %b)
lockers()
make_day(%b)
drop_day(%b, %b::smallint, %b::bigint)
settle_day(%b::integer)
forget_queues(%b)
-- schedules
save(%b, %b, %b)
find(%b, %b, %b, %b, %b::integer)
due(%b, %b::integer, %b::integer, %b::integer)
plan(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b)
history((%b::uuid[])[1], %b::bigint, %b::integer)
note(%b, %b, %b, %b, %b)
sweep_ticks(%b, %b::bigint, %b::bigint, %b::bigint, %b::integer, %b)
-- policies
policies(%b, %b)
limit_tenant(%b, %b, %b, %b::bigint, %b::bigint, %b::bigint)
tenants(%b, %b, %b, %b, %b::integer)
group(%b, %b, %b::integer)
-- references
referring(%b::integer, %b::integer, %b, %b::integer)
swap_cells(%b)
-- the archive
ends(%b::smallint, %b::bigint, %b, %b::integer)
removals(%b::integer)
forget_removals(%b::bigint, %b::integer)
-- documents and the journal
documents(%b)
find_documents(%b, %b, %b::integer)
put_document(%b, %b, %b::bigint)
write_journal(%b, %b, %b::bigint)
read_journal(%b::bigint, %b::integer)
-- trackers
sheets(%b, %b, %b, %b)
walk_sheets(%b, %b, %b, %b::bigint, %b::integer)
write_sheets(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b)
due_sheets(%b, %b, %b::integer, %b::bigint)
tally_sheets(%b)
-- transfers
open_leg(%b)
close_leg(%b, %b::integer)
depart(%b, %b, %b)
arrive(%b, %b, %b, %b, %b)
confirm(%b, %b)
ledger(%b, %b, %b, %b::integer)
held_keys(%b, %b, %b, %b::integer)
hold_keys(%b, %b, %b, %b, %b)
add_ticks(%b, %b)
settling()
-- windows
name_streams()
in_charge(%b, %b, %b::bigint)
watch_streams(%b, %b::bigint)
raise_floor(%b, %b, %b::bigint)
take_over(%b, %b::bigint, %b, %b, %b, %b)
complete_given(%b, %b, %b, %b, %b, %b, %b, %b::bigint, %b)
finish_given(%b, %b, %b, %b, %b::bigint, %b, %b, %b)
open_queue(%b, %b::bigint, %b)
shut_queue(%b, %b::bigint, %b, %b, %b, %b, %b)
candidates(%b, %b::bigint, %b, %b::integer, %b::smallint, %b::bigint, %b, %b::bigint, %b::integer)
workers_of(%b, %b)
oldest_waiting(%b, %b, %b, %b)
delayed(%b, %b, %b::bigint, %b::integer)
feed(%b)

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: insert
SELECT * FROM {schema}.insert_v1(%b, %b, %b, true)

-- name: insert_new
SELECT * FROM {schema}.insert_v1(%b, %b, %b, true, p_new => true)

-- name: insert_one
SELECT {schema}.insert_one_v1($1, $2, $3, $4, $5)

-- name: complete_and_claim
SELECT * FROM {schema}.complete_and_claim_v1(
    %b, %b, %b, %b, %b, %b, %b, %b, %b, %b::integer, %b::bigint, %b::smallint, %b::integer, %b::bigint,
    %b, %b, %b, %b, %b
)

-- name: seal
SELECT {schema}.seal_v1()

-- name: finish_and_claim
SELECT * FROM {schema}.finish_v1(%b, %b, %b, %b)
UNION ALL
SELECT * FROM {schema}.claim_v1(
    %b, %b, %b, %b::integer, %b::bigint, %b::smallint, %b::integer, %b::bigint, true, %b, %b, %b, %b, %b
)

-- name: renew
SELECT * FROM {schema}.renew_v1(
    %b, %b, %b, %b, %b::bigint, %b, %b, %b::bigint, %b::integer, %b::integer, %b, %b::bigint, %b::bigint, %b::integer,
    %b::bytea[]
)

-- name: alter
SELECT * FROM {schema}.alter_v1(
    %b,
    ARRAY(SELECT m.id FROM {schema}.matching_v1(
        %b, %b, %b, %b, %b, %b, %b, %b, %b, %b::bigint, %b, %b, %b::integer, %b, %b, %b
    ) AS m),
    %b::integer, %b, %b::bigint, %b, %b, %b, %b, false, %b
)

-- name: scan
SELECT * FROM {schema}.fetch_v1(
    %b,
    ARRAY(SELECT m.id FROM {schema}.matching_v1(
        %b, %b, %b, %b, %b, %b, %b, %b, %b, %b::bigint, %b, %b, %b::integer, %b, %b, %b
    ) AS m),
    '{}', '{}', 0::smallint, false, false
)

-- name: workers
SELECT worker, queues, slots, busy, started_at, seen_at FROM {schema}.workers_v1(%b)

-- name: save_policy
SELECT {schema}.save_policy_v1(
    %b, %b, %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b, %b, %b, %b::bigint,
    %b::bigint, %b::bigint, %b::bigint, %b::bigint, %b
)

-- name: bulk_begin
SELECT b.now, b.qids, b.fits FROM {schema}.begin_bulk(%b, %b, %b) AS b

-- name: bulk_jobs
COPY {schema}.jobs ({columns}) FROM STDIN (FORMAT BINARY)

-- name: bulk_ready
COPY {schema}.ready (run_at, id, epoch, qid, attempt, lost, size, priority, keyed, lane, dies_at) FROM STDIN (FORMAT BINARY)

-- name: bulk_end
INSERT INTO {schema}.deltas (qid, state, jobs) SELECT n.qid, 0, n.jobs FROM unnest(%b, %b) AS n (qid, jobs)

-- name: parcels
SELECT (p.job).*, p.key IS NOT NULL, p.held_until, p.begun, p.inboxes
FROM {schema}.parcels_v1(%b, %b, %b, %b, %b::integer) AS p

-- name: insert_now
SELECT n.now, c.floor, i.* FROM (SELECT coalesce(%b, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now) AS n
CROSS JOIN {schema}.in_charge_v1(n.now, NULL, NULL) AS c
LEFT JOIN LATERAL {schema}.insert_v1(n.now, %b, %b, true, p_new => true) AS i ON true
