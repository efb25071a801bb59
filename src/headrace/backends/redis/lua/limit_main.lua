-- Replaces the limit of a tenant. ARGV: now or '', the names of the queue and of the tenant, its limit (msgpack: {running, rate}; '' :
-- none). Answers whether steps are left to be done.
clock(ARGV[1])
local qid = qid_of(ARGV[2])
rule().govern(qid)
if ARGV[4] ~= '' or turns().known(qid, ARGV[3]) then
    local t = turns().tenant(qid, ARGV[3])
    t.limit = ARGV[4] ~= '' and cmsgpack.unpack(ARGV[4])
    turns().change(t)
end
wake(qid, SIGNALS)
local more = rule().is_going_on(qid)
settle()
return more and 1 or 0
