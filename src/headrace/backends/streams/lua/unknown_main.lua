-- Which of these jobs are not in the window, as numbers from 0. ARGV: run id, at, queue, token of who feeds it, how long its next step may take,
-- ids.
local queue = ARGV[3]
if call('GET', key('f', queue)) == ARGV[4] then
    call('PEXPIRE', key('f', queue), ARGV[5])
end
local found = {}
for i = 6, #ARGV do
    if not is_known(queue, ARGV[i]) then
        table.insert(found, i - 6)
    end
end
return {'OK', found}
