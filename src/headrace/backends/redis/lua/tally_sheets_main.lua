-- Reads the numbers of all tiers of all trackers. Answers names and numbers in turn.
return call('HGETALL', base .. ':Yn')
