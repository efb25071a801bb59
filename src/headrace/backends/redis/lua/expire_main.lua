-- Cancels due jobs that have expired. ARGV: now or '', ids. Answers id, job and state of each, and the names of the queues by number.

local now = clock(ARGV[1])
local expired, known = {}, {}
for _, id in ipairs(ids_in(ARGV[2])) do
    local dies = call('ZSCORE', base .. ':y', id)
    local j = dies and tonumber(dies) <= now and find(id)
    if j and j.state == AVAILABLE then
        leave(id, j)
        finish(id, j, CANCELLED, now, 'expired')
        expired[#expired + 1], known[j.qid] = id, true
    end
end
settle()
return {taken_back(expired), names_of(known)}
