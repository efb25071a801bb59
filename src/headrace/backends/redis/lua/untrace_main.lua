-- Removes the traces of jobs that were here. ARGV: ids.

many('ZREM', base .. ':m', ids_in(ARGV[1]))
return 0
