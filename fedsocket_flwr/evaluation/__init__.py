"""How a run is measured and shown: metrics, statistics over seeds, the report of a run folder."""
