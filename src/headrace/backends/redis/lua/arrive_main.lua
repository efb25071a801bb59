-- Stores the jobs of parcels. ARGV: now or '', the leg; then of each parcel its id, {queue, state, priority, run_at, enqueued_at, expires_at (0:
-- never), finished_at, held_until, epoch, attempt, lost, reason, whether it has begun, whether it had its key, whether it has a group, an error,
-- a result, its size, inboxes, whether its id is in use in another shard} (msgpack), body, error, result. Answers for each whether it was stored
-- now; nothing if the leg is not open.

local now, leg = clock(ARGV[1]), ARGV[2]
if not is_open(leg) then
    return false
end

local function arrive(id, given, body, error, result)
    local listed = call('ZADD', base .. ':La:' .. leg, 0, id) == 0
    if listed or given[20] or call('ZSCORE', base .. ':a', id) or call('HEXISTS', base .. ':j', id) == 1 then
        return 0
    end
    local qid = qid_of(given[1])
    local j = {
        state = given[2], cancel = 0, lost = given[11], instant = given[7], held_until = given[8], attempt = given[10], size = given[18],
        qid = qid, priority = given[3], keyed = given[14] and 1 or 0, grouped = given[15], begun = given[13], expires_at = given[6],
        run_at = given[4], epoch = given[9], text = given[12],
    }
    local flags = j.keyed + (j.grouped and 2 or 0)
    local job = struct.pack(JOB, given[5], j.size, qid, j.priority, flags, j.expires_at) .. body
    local waiters = #given[19] > 0 and cmsgpack.pack(given[19])
    store_whole(now, id, j, job, given[16] and error, false, given[17] and result, waiters)
    return 1
end

local answers = {}
for i = 3, #ARGV, 5 do
    answers[#answers + 1] = arrive(ARGV[i], cmsgpack.unpack(ARGV[i + 1]), ARGV[i + 2], ARGV[i + 3], ARGV[i + 4])
end
settle()
return answers
