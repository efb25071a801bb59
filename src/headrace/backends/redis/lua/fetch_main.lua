-- Reads records of jobs.
-- ARGV: now or '', ids (16 bytes each), {queue, key} of those named by key (msgpack), and whether errors, results and cells are wanted
-- ('1'). Answers now; for each name: id, job, state, replaced cells, error, result, worker, and run_at of a job that was never leased; or
-- nothing; then the names of the queues by number.

local now = clock(ARGV[1])
local ids = ids_in(ARGV[2])
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
        local qid, run_at, worker = nil, '', false
        if states[i] then
            local j = read_state(states[i])
            qid = j.qid
            worker = j.state == RUNNING and worker_of(j.text, now)
        else
            local j = fresh(id, jobs[i])
            qid, run_at = j.qid, number(j.run_at)
        end
        known[qid] = true
        answers[i] = {
            id, ARGV[6] == '1' and jobs[i] or without_cells(jobs[i]), states[i], ARGV[6] == '1' and call('HGET', base .. ':c', id),
            ARGV[4] == '1' and call('HGET', base .. ':e', id), ARGV[5] == '1' and call('HGET', base .. ':h', id), worker, run_at,
        }
    end
end
return {number(now), answers, names_of(known)}
