if lost then
    return {'LOST'}
end
