"""What runs beside what: classes of work, streams, paths, communication."""
