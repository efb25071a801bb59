-- The queues that have a window, or had one.
return {'OK', call('SMEMBERS', base .. ':Q')}
