-- Reads tenants of a governed queue.
-- ARGV: now or '', the queue's name, names in their order (msgpack) or '' for all, the title to begin with, limit, how far to count.
-- Answers now, the policy (POLICY; '' : none), and TENANT, waiting jobs and names of workers of each.
local now = clock(ARGV[1])
local qid = call('HGET', base .. ':q', ARGV[2])
if not qid or not is_governed(qid) then
    return {number(now), '', {}}
end
local limit, cap = tonumber(ARGV[5]), tonumber(ARGV[6])
local found = {}
if ARGV[3] == '' then
    for _, title in ipairs(call('ZRANGEBYLEX', base .. ':V:' .. qid, ARGV[4], '+', 'LIMIT', 0, limit)) do
        found[#found + 1] = turns().by_number(struct.unpack('>I8', title, #title - 7))
    end
else
    for _, name in ipairs(cmsgpack.unpack(ARGV[3])) do
        local t = #found < limit and turns().known(tonumber(qid), name)
        if t then
            found[#found + 1] = t
        end
    end
end
local answers = {}
for i, t in ipairs(found) do
    local workers = {}
    for holder in pairs(t.holders) do
        workers[#workers + 1] = worker_of(holder, now) or nil
    end
    answers[i] = {call('HGET', base .. ':M', number(t.n)), math.min(t.due + t.delayed, cap), workers}
end
return {number(now), call('HGET', base .. ':P', qid) or '', answers}
