"""Backends made of backends: shards, and a store on its way to another. Nothing here knows which kinds of stores there
are, nor what is in a payload."""
