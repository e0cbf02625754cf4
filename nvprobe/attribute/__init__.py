"""From a Trace to the owner of every GPU op, with the method and a ledger that adds up."""
