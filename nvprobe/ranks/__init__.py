"""All ranks of a job as one analysis: who is late, and whether waiting or the network costs time.

*Map*: every rank's capture becomes a small :class:`~nvprobe.ranks.summary.Summary`, by itself.
*Reduce*: :func:`~nvprobe.ranks.job.job` lays the summaries on one clock and compares them.
"""
