-- Leaves traces of jobs that found no room here and are about to be stored in another shard. ARGV: ids. Answers the numbers of those that are here
-- after all.
local found = {}
for i, id in ipairs(ids_in(ARGV[1])) do
    if call('HEXISTS', base .. ':j', id) == 1 then
        found[#found + 1] = i
    else
        leave_trace(id)
    end
end
return found
