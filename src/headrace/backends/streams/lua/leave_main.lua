-- Another server has taken over: this one gives nothing out until it has done so again. ARGV: run id and floor.
if general[2] == string.match(ARGV[1], '^%S+') and general[1] == string.match(ARGV[1], '%S+$') then
    call('HDEL', base .. ':G', 'run')
end
return {'OK'}
