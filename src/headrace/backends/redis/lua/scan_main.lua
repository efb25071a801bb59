-- Finds jobs that match, newest id first.
-- ARGV: now or '', whether they are named, ids, {queue, key} (msgpack), selector (msgpack), the id below which they are ('' : any), limit,
-- how many to look at. Answers now; for each job: id, job without cells, state, '', '', '', worker, run_at, progress; the names of the queues by
-- number; and the id down to which it has looked ('' : to the end).

local now = clock(ARGV[1])
local sel = selector(ARGV[5])
local below, limit, look = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
-- Running jobs are looked for among the leases, as long as these are few.
local ONLY_RUNNING, FEW = 2, 5000
local ids
local leases = sel[4] == ONLY_RUNNING and ARGV[2] ~= '1' and call('ZCARD', base .. ':l')
if leases and leases <= FEW then
    ids = call('ZRANGE', base .. ':l', 0, -1)
    table.sort(ids, function(a, b) return before(b, a) end)
    look = #ids + 1
elseif ARGV[2] == '1' then
    ids = named(ARGV[3], cmsgpack.unpack(ARGV[4]))
    table.sort(ids, function(a, b) return before(b, a) end)
    look = #ids + 1
else
    ids = call('ZREVRANGEBYLEX', ids_of(sel), below == '' and '+' or '(' .. below, '-', 'LIMIT', 0, look)
end
local answers, known, downto, bytes = {}, {}, '', 0
for i, id in ipairs(ids) do
    if below == '' or before(id, below) then
        local j, job, packed, size = meet(id, sel)
        bytes = bytes + size
        if j then
            local worker = j.state == RUNNING and worker_of(j.text, now)
            known[j.qid] = true
            answers[#answers + 1] = {id, without_cells(job), packed, false, false, false, worker, number(j.run_at), progress_of(id, j)}
        end
    end
    if #answers > limit then
        break
    end
    if i == look or bytes > MOST_READ then
        downto = id
        break
    end
end
return {number(now), answers, names_of(known), downto}
