-- Policies, and what they hold back. ARGV: now or '', queue names (msgpack), or '' for all. Answers now, and for each that has a policy
-- or is governed: its name, its policy ('' : none), whether it is governed, paused tasks and till when, rates under way (BUCKET) by
-- their fields.
local now = clock(ARGV[1])
local qids, seen = {}, {}

local function add(qid)
    if qid and not seen[qid] then
        seen[qid] = true
        qids[#qids + 1] = qid
    end
end

if ARGV[2] == '' then
    for _, key in ipairs({':P', ':o'}) do
        for _, qid in ipairs(call('HKEYS', base .. key)) do
            add(qid)
        end
    end
else
    for _, name in ipairs(cmsgpack.unpack(ARGV[2])) do
        add(name == '' and '0' or call('HGET', base .. ':q', name))
    end
end
local told = {}
for _, qid in ipairs(qids) do
    local policy = call('HGET', base .. ':P', qid)
    local governed = call('HEXISTS', base .. ':o', qid)
    if policy or governed == 1 then
        told[#told + 1] = {
            qid == '0' and '' or name_of(tonumber(qid)), policy or '', governed,
            call('ZRANGEBYSCORE', base .. ':oz:' .. qid, '(' .. number(now), '+inf', 'WITHSCORES'), call('HGETALL', base .. ':of:' .. qid),
        }
    end
end
return {number(now), told}
