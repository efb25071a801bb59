-- Which of these jobs are not in the window, as numbers from 0. ARGV: run id, at, queue, ids.
local found = {}
for i = 4, #ARGV do
    if not is_known(ARGV[3], ARGV[i]) then
        table.insert(found, i - 4)
    end
end
return {'OK', found}
