"""The waist between the core and the stores: the protocol, its flat records, and nothing that runs."""
