-- Begin to feed a window. ARGV: run id, at, queue, token, how long this may take. Answers whether the caller may, and the queue's mode, what is
-- left of the time for which it is closing or closed, the mark, and how many jobs were not given out. Once a second there is no mark: a job that
-- nobody told of may be anywhere. Last, when the floor was raised, and the floor.
local queue = ARGV[3]
local mode, ends, mark, passed = unpack(call('HMGET', key('m', queue), 'mode', 'until', 'mark', 'passed'))
local left = (tonumber(ends) or 0) - real
local may = 0
if mode == 'o' or not mode or left <= 0 then
    may = call('SET', key('f', queue), ARGV[4], 'NX', 'PX', ARGV[5]) and 1 or 0
end
if may == 1 and real - (tonumber(passed) or 0) > 1000000 then
    mark = ''
    call('HSET', key('m', queue), 'passed', whole(real))
end
return {'OK', may, mode or '', whole(left), mark or '', call('HLEN', key('k', queue)), call('HGET', base .. ':G', 'raised') or '', floor}
