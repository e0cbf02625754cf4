"""From an Analysis to text, JSON and tables: no computing here."""
