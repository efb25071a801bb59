"""Backends made of backends: shards, and a store on its way to another."""
