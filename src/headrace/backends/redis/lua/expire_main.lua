-- Cancel due jobs that have expired. ARGV: now or '', ids. Answers id, job and state of each, and the names of the queues by number.

local now = clock(ARGV[1])
local told, flat = {}, {}
for i = 1, #ARGV[2] / 16 do
    local id = string.sub(ARGV[2], (i - 1) * 16 + 1, i * 16)
    local dies = call('ZSCORE', base .. ':y', id)
    local j = dies and tonumber(dies) <= now and find(id)
    if j and j.state == AVAILABLE then
        leave(id, j)
        finish(id, j, CANCELLED, now, 'expired')
        told[#told + 1] = id
        told[#told + 1] = without_cells(call('HGET', base .. ':j', id))
        told[#told + 1] = call('HGET', base .. ':s', id)
        flat[#flat + 1] = j.qid
        flat[#flat + 1] = name_of(j.qid)
    end
end
settle()
return {told, flat}
