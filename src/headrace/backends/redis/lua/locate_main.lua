-- Finds where jobs are. ARGV: ids, {queue, key} (msgpack). Answers for each id 0 unknown, 1 here, 2 on its way to another shard, or when it
-- left; then for each key the id that last took it, or ''.

local codes, jobs = {}, {}
for i, id in ipairs(ids_in(ARGV[1])) do
    codes[i] = call('HEXISTS', base .. ':j', id) + call('HEXISTS', base .. ':to', id)
    if codes[i] == 0 then
        codes[i] = call('ZSCORE', base .. ':a', id) and 1 or tonumber(call('ZSCORE', base .. ':m', id) or 0)
    end
end
for i, one in ipairs(cmsgpack.unpack(ARGV[2])) do
    jobs[i] = named_by(one[1], one[2])
end
return {codes, jobs}
