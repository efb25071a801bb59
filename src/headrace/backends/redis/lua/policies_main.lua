-- Reads policies and what they hold back.
-- ARGV: now or '', queue names (msgpack), or '' for the names of all queues that have a policy or are governed. Answers these names; or
-- now, and for each named queue: its name, its policy ('' : none), whether it is governed, paused tasks and until when, buckets (BUCKET) of
-- rates by field, rates of tasks.
local now = clock(ARGV[1])
local qids, seen, found = {}, {}, {}

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
    for i, name in ipairs(ask('HMGET', base .. ':qn', qids)) do
        found[i] = name or ''
    end
    return found
end
for _, name in ipairs(cmsgpack.unpack(ARGV[2])) do
    add(name == '' and '0' or call('HGET', base .. ':q', name))
end
for _, qid in ipairs(qids) do
    local policy = call('HGET', base .. ':P', qid)
    local governed = call('HEXISTS', base .. ':o', qid)
    if policy or governed == 1 then
        found[#found + 1] = {
            qid == '0' and '' or name_of(tonumber(qid)), policy or '', governed,
            call('ZRANGEBYSCORE', base .. ':oz:' .. qid, '(' .. number(now), '+inf', 'WITHSCORES'), call('HGETALL', base .. ':of:' .. qid),
            call('HGETALL', base .. ':Pk:' .. qid),
        }
    end
end
return {number(now), found}
