-- What somebody must know who is about to store jobs of a queue. ARGV: run id, at, queue. Answers the mode and the number of feedings.
local mode, feeds = unpack(call('HMGET', key('m', ARGV[3]), 'mode', 'feeds'))
return {'OK', mode or '', feeds or ''}
