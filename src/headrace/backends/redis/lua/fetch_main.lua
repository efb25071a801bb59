-- Reads records of jobs.
-- ARGV: now or '', ids (16 bytes each), {queue, key} of those named by key (msgpack), whether errors and results are wanted ('1'),
-- and which sections (a bit for each). Answers now; for each name: id, job, state, replaced cells, error, result, worker,
-- run_at of a job that was never leased, and progress; or nothing; then the names of the queues by number.

local now = clock(ARGV[1])
local ids, want = ids_in(ARGV[2]), tonumber(ARGV[6])
for _, one in ipairs(cmsgpack.unpack(ARGV[3])) do
    ids[#ids + 1] = named_by(one[1], one[2])
end
local jobs = ask('HMGET', base .. ':j', ids)
local states = ask('HMGET', base .. ':s', ids)
local answers, known = {}, {}
for i, id in ipairs(ids) do
    if not jobs[i] and (id == '' or not call('ZSCORE', base .. ':a', id)) then
        answers[i] = false
    else
        local qid, run_at, worker, progress = nil, '', false, false
        if states[i] then
            local j = read_state(states[i])
            qid = j.qid
            worker, progress = j.state == RUNNING and worker_of(j.text, now), progress_of(id, j)
        else
            local j = fresh(id, jobs[i])
            qid, run_at = j.qid, number(j.run_at)
        end
        known[qid] = true
        answers[i] = {
            id, trim.job(jobs[i], want), states[i], want > 0 and trim.patches(call('HGET', base .. ':c', id), want),
            ARGV[4] == '1' and call('HGET', base .. ':e', id), ARGV[5] == '1' and call('HGET', base .. ':h', id), worker, run_at, progress,
        }
    end
end
return {number(now), answers, names_of(known)}
