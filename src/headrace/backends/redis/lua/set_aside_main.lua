-- Sets aside leased jobs that their holder cannot read. ARGV: now or '', holder, ids.

local now = clock(ARGV[1])
for _, id in ipairs(ids_in(ARGV[3])) do
    local j = find(id)
    if j and j.state == RUNNING and j.text == ARGV[2] then
        leave(id, j)
        set_aside(id, j.qid, true)
    end
end
call_groups()
settle()
