-- What the client sends: one call each. The functions are in the migrations, with the indexes that they rely on.

-- name: now
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: insert
SELECT * FROM {schema}.insert_v1(%b, %b, %b, true)

-- name: insert_new
SELECT * FROM {schema}.insert_v1(%b, %b, %b, true, p_new => true)

-- name: insert_one
SELECT {schema}.insert_one_v1($1, $2, $3, $4, $5)

-- name: claim
SELECT * FROM {schema}.claim_v1(
    %b, %b, %b, %b::integer, %b::bigint, %b::smallint, %b::integer, %b::bigint, true, %b, %b, %b, %b, %b
)

-- name: complete_and_claim
SELECT * FROM {schema}.complete_and_claim_v1(
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
    %b, %b, %b, %b, %b::bigint, %b, %b, %b::bigint, %b::integer, %b::integer, %b, %b::bigint, %b::bigint, %b::integer,
    %b::bytea[]
)

-- name: reap
SELECT * FROM {schema}.reap_v1(
    %b, %b::integer, %b::integer, %b::bigint, %b, %b::bigint, %b::bigint
)

-- name: set_aside
SELECT * FROM {schema}.set_aside_v1(%b)

-- name: pause
SELECT {schema}.pause_v1(%b, %b, %b, %b, %b, %b::bigint)

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

-- name: referring
SELECT * FROM {schema}.referring_v1(%b::integer, %b::integer, %b, %b::integer)

-- name: swap_cells
SELECT * FROM {schema}.swap_cells_v1(%b)

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
SELECT * FROM {schema}.sweep_v1(%b, %b::smallint, %b::bigint, %b::bigint, %b::bigint, %b::integer, %b, %b::bigint, %b::bigint)

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

-- name: lockers
SELECT {schema}.lockers_v1()

-- name: make_day
SELECT {schema}.make_day_v1(%b)

-- name: drop_day
SELECT {schema}.drop_day_v1(%b, %b::smallint, %b::bigint)

-- name: settle_day
SELECT * FROM {schema}.settle_day_v1(%b::integer)

-- name: forget_queues
SELECT {schema}.forget_queues_v1(%b)

-- name: stats
SELECT * FROM {schema}.stats_v1(%b, %b::integer, %b::text[], %b::integer)

-- name: workers
SELECT worker, queues, slots, busy, started_at, seen_at FROM {schema}.workers_v1(%b)

-- name: ranks
SELECT * FROM {schema}.ranks_v1(%b, %b)

-- name: places
SELECT * FROM {schema}.places_v1()

-- name: save
SELECT {schema}.save_v1(%b, %b, %b)

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
SELECT b.now, b.qids, b.fits FROM {schema}.begin_bulk(%b, %b, %b) AS b

-- name: bulk_jobs
COPY {schema}.jobs ({columns}) FROM STDIN (FORMAT BINARY)

-- name: bulk_ready
COPY {schema}.ready (run_at, id, epoch, qid, attempt, lost, size, priority, keyed, lane, dies_at) FROM STDIN (FORMAT BINARY)

-- name: bulk_end
INSERT INTO {schema}.deltas (qid, state, jobs) SELECT n.qid, 0, n.jobs FROM unnest(%b, %b) AS n (qid, jobs)

-- name: sweep_named
SELECT * FROM {schema}.sweep_named_v1(%b, %b::smallint, %b, %b, %b::bigint, %b, %b::bigint, %b::bigint)

-- name: ends
SELECT * FROM {schema}.ends_v1(%b::smallint, %b::bigint, %b, %b::integer)

-- name: removals
SELECT * FROM {schema}.removals_v1(%b::integer)

-- name: forget_removals
SELECT {schema}.forget_removals_v1(%b::bigint, %b::integer)

-- name: ending
SELECT * FROM {schema}.ending_v1(%b)

-- name: documents
SELECT * FROM {schema}.documents_v1(%b)

-- name: find_documents
SELECT * FROM {schema}.find_documents_v1(%b, %b, %b::integer)

-- name: put_document
SELECT {schema}.put_document_v1(%b, %b, %b::bigint)

-- name: usage
SELECT * FROM {schema}.usage_v1()

-- name: reserve
SELECT {schema}.reserve_v1(%b::bigint)

-- name: sheets
SELECT * FROM {schema}.sheets_v1(%b, %b, %b, %b)

-- name: walk_sheets
SELECT * FROM {schema}.walk_sheets_v1(%b, %b, %b, %b::bigint, %b::integer)

-- name: write_sheets
SELECT {schema}.write_sheets_v1(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b, %b)

-- name: due_sheets
SELECT * FROM {schema}.due_sheets_v1(%b, %b, %b::integer, %b::bigint)

-- name: tally_sheets
SELECT * FROM {schema}.tally_sheets_v1(%b)

-- name: write_journal
SELECT {schema}.write_journal_v1(%b, %b, %b::bigint)

-- name: read_journal
SELECT * FROM {schema}.read_journal_v1(%b::bigint, %b::integer)

-- name: open_leg
SELECT {schema}.open_leg_v1(%b)

-- name: close_leg
SELECT {schema}.close_leg_v1(%b, %b::integer)

-- name: depart
SELECT * FROM {schema}.depart_v1(%b, %b, %b)

-- name: parcels
SELECT (p.job).*, p.key IS NOT NULL, p.held_until, p.begun, p.inboxes
FROM {schema}.parcels_v1(%b, %b, %b, %b, %b::integer) AS p

-- name: arrive
SELECT * FROM {schema}.arrive_v1(%b, %b, %b, %b, %b)

-- name: confirm
SELECT {schema}.confirm_v1(%b, %b)

-- name: ledger
SELECT * FROM {schema}.ledger_v1(%b, %b, %b, %b::integer)

-- name: held_keys
SELECT * FROM {schema}.held_keys_v1(%b, %b, %b, %b::integer)

-- name: hold_keys
SELECT {schema}.hold_keys_v1(%b, %b, %b, %b, %b)

-- name: add_ticks
SELECT {schema}.add_ticks_v1(%b, %b, %b, %b, %b, %b, %b, %b, %b, %b)

-- name: settling
SELECT {schema}.settling_v1()

-- name: send_parts
SELECT {schema}.send_parts_v1(%b, %b, %b, %b, %b, %b::bigint, %b::integer)

-- name: read_parts
SELECT * FROM {schema}.read_parts_v1(%b, %b::bigint, %b::bigint, %b::integer)

-- name: insert_now
SELECT n.now, c.floor, i.* FROM (SELECT coalesce(%b, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) AS now) AS n
CROSS JOIN {schema}.in_charge_v1(n.now, NULL, NULL) AS c
LEFT JOIN LATERAL {schema}.insert_v1(n.now, %b, %b, true, p_new => true) AS i ON true

-- name: name_streams
SELECT {schema}.name_streams_v1()

-- name: in_charge
SELECT * FROM {schema}.in_charge_v1(%b, %b, %b::bigint)

-- name: watch_streams
SELECT {schema}.watch_streams_v1(%b, %b::bigint)

-- name: raise_floor
SELECT * FROM {schema}.raise_floor_v1(%b, %b, %b::bigint)

-- name: take_over
SELECT * FROM {schema}.take_over_v1(%b, %b::bigint, %b, %b, %b, %b)

-- name: complete_given
SELECT * FROM {schema}.complete_given_v1(%b, %b, %b, %b, %b, %b, %b, %b::bigint, %b)

-- name: finish_given
SELECT * FROM {schema}.finish_given_v1(%b, %b, %b, %b, %b::bigint, %b, %b, %b)

-- name: open_queue
SELECT {schema}.open_queue_v1(%b, %b::bigint, %b)

-- name: shut_queue
SELECT {schema}.shut_queue_v1(%b, %b::bigint, %b, %b, %b, %b, %b)

-- name: candidates
SELECT * FROM {schema}.candidates_v1(%b, %b::bigint, %b, %b::integer, %b::smallint, %b::bigint, %b, %b::bigint, %b::integer)

-- name: workers_of
SELECT * FROM {schema}.workers_of_v1(%b, %b)

-- name: oldest_waiting
SELECT * FROM {schema}.oldest_waiting_v1(%b, %b, %b)

-- name: delayed
SELECT * FROM {schema}.delayed_v1(%b, %b, %b::bigint, %b::integer)

-- name: feed
SELECT * FROM {schema}.feed_v1(%b)
