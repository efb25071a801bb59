-- Insert one plain row: without a key or a group, into a known queue without rules. The general way would cost more than
-- the insert itself. ``p_channel`` and ``p_note``: the hint to listeners, if one is to go with the row.
--
-- Returns 0 if it is stored and nobody listens, 1 if it is stored and the hint goes with it, 2 if it is stored and the
-- hint is left to the caller, 3 if nothing is stored because the row is not plain. An id that is stored raises
-- unique_violation.
--
-- A listener holds the first lock (``presence.py``). A transaction with a notification keeps all others that have one
-- from committing, until it is on the disk. So one at a time has one; the callers of the others send theirs later,
-- together. Nobody waits for either lock, as any role can take it: then rows are stored all the same, and hints are sent.
CREATE FUNCTION insert_one_v1(p_at bigint, p_queue text, r job_row, p_channel text DEFAULT NULL, p_note text DEFAULT NULL)
RETURNS smallint LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
    v_now CONSTANT bigint := clock(p_at);
    v_due CONSTANT bigint := coalesce(r.run_at, v_now + r.delay);
    v_size CONSTANT integer := row_weight(v_now, r);
    v_qid integer;
BEGIN
    IF v_size IS NULL OR r.key IS NOT NULL OR r.group_name IS NOT NULL
        OR current_setting('transaction_isolation') <> 'read committed'
    THEN
        RETURN 3;
    END IF;
    -- queues_name_key, policies_pkey. The row that is not there to be locked has the table locked, as by ``queue_ids``.
    SELECT q.qid INTO v_qid FROM queues AS q
    WHERE q.name = p_queue AND NOT q.leaving AND NOT q.governed
        AND NOT EXISTS (SELECT 1 FROM policies AS p WHERE p.queue = p_queue)
        AND NOT EXISTS (SELECT 1 FROM policies AS p WHERE p.queue = '')
        AND NOT EXISTS (SELECT 1 FROM queues AS l WHERE false FOR KEY SHARE);
    IF v_qid IS NULL THEN
        RETURN 3;
    END IF;
    WITH job AS (
        INSERT INTO jobs (
            id, enqueued_at, expires_at, timeout, result_ttl, max_attempts, task, tenant, headers, parameters, vm_state,
            metadata, blob
        ) VALUES (
            r.id, v_now, v_now + r.expires, r.timeout, r.result_ttl, r.max_attempts, r.task, r.tenant, r.headers,
            r.parameters, r.vm_state, r.metadata, r.blob
        )
    ), place AS (
        INSERT INTO ready (run_at, id, epoch, qid, attempt, lost, size, priority, keyed, lane, dies_at) VALUES (
            v_due, r.id, 0, v_qid, 0, 0, v_size, r.priority, false, CASE WHEN v_due > v_now THEN 0 END,
            CASE WHEN r.expires IS NOT NULL THEN greatest(v_now + r.expires, v_due) END
        )
    )
    INSERT INTO deltas (qid, state, jobs) VALUES (v_qid, 0, 1);
    IF r.reply_to IS NOT NULL THEN
        INSERT INTO waiters (id, inbox) VALUES (r.id, r.reply_to) ON CONFLICT DO NOTHING;
    END IF;
    IF random() < 0.001 THEN  -- while there are no workers, nobody else does
        PERFORM fold_deltas();
    END IF;
    IF pg_try_advisory_lock(1751474532, 1) AND pg_advisory_unlock(1751474532, 1) THEN
        RETURN 0;
    ELSIF p_note IS NULL OR NOT pg_try_advisory_xact_lock(1751474532, 2) THEN
        RETURN 2;
    END IF;
    PERFORM pg_notify(p_channel, p_note);
    RETURN 1;
END $$;

SELECT seal();
