"""The words and the look of the report."""

ARMS = {
    "semistream": "semistream's <code>enrich</code>",
    "source": "read the stream, drop it: no join, the bound of any Spark query",
    "passthrough": "the stream through <code>mapInArrow</code> and back: no join, the bound of what crosses whole",
    "plain": "Spark's stream-static left join, planned by Spark",
    "bucketed": "the same with a master bucketed and sorted by the key, the batch hashed (<code>shuffle_hash</code>)",
    "broadcast_stream": "the batch broadcast to the master in <code>foreachBatch</code>; an inner join, since Spark "
    "cannot broadcast the preserved side of an outer join. Every key has a match here, so the rows are the same; "
    "that is checked",
    "sweep_each": "the same, but every batch is answered whole before the next one comes",
    "sweep": "semistream's join, embedded, on a plain store: hot rows cached, the others by planned sweeps over the "
    "pages",
    "sweep_groups": "the same join on a store with a column group of the columns asked for (<code>groups=</code>)",
    "inl": "one indexed lookup per row: the papers' baseline",
    "whole": "the whole master in memory, whatever the budget: for orientation",
    "duckdb_parquet": "DuckDB, each batch joined by SQL with the master's Parquet files in key order",
    "duckdb_table": "DuckDB, each batch joined with its own table with a primary key",
    "build": "a store built from Parquet files in random order",
}

JOINS = """
<p>One stream a cell. Counters and clock are read as rows go in, once tables and caches are full. A page has 4 KiB;
reads differ in size from join to join, so tuples per page is what compares them. <i>Held</i> is what the join took from
its budget, <i>growth</i> the process's memory above its idle baseline. Grey lines are the joins that the table names
and the picture does not.</p>
"""

METHOD = """
<h2>How it was measured</h2>
<ul>
<li><b>Data.</b> A master of 120-byte rows. The stream's keys follow Zipf's law with exponent 1; keys are shuffled, so
hot rows share no pages. Narrow stream rows have 20 bytes, wide ones about 250. Three master columns are added to each
row (surrogate, price, vendor) unless a title names others: <i>two</i> are surrogate and price, the <i>text column</i>
is the description of 83 bytes.</li>
<li><b>Order.</b> Each run is a fresh process. Arms of one place follow each other, and each repetition starts with
another arm.</li>
<li><b>Agreement.</b> Every second warm-up batch and one after the timed ones are checked by count and by a checksum
over all columns of all rows. Times are shown only where all arms gave the same rows.</li>
<li><b>Rates</b> are rows divided by seconds over all timed batches of a run; the tables give the median of the
repetitions and their range. A ratio is the median of the ratios within each repetition.</li>
<li><b>Spark.</b> <code>local[2]</code>, two shuffle partitions, 4 GB for the driver; the same settings and the same
warm-up for all arms. The time of a batch is that of its trigger, planning and commit included; output goes to the
<code>noop</code> sink. All files are in the page cache.</li>
<li><b>Core.</b> Each batch is one call, nothing waits for the next. Our joins compute in one thread (reads with
O_DIRECT are in flight in others; <i>cores used</i> is CPU time over wall time). All files are in the page cache, except
with O_DIRECT. DuckDB gets our budget as its memory limit; where that is too little for it, the limit was doubled until
the batch went through, and the table says to what.</li>
<li><b>Memory.</b> The proportional set size of each process, sampled every 50 ms: its peak above its idle baseline,
added up over the workers. An idle worker has loaded all code and holds no data. Shares of memory are of the store's
bytes on disk.</li>
<li><b>Others.</b> What all cores did during a run is compared with what its own processes used; the rest, and what
the hypervisor took, went to others. Above a tenth of the machine's CPU time, the page says so first.</li>
</ul>
"""

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2429; background: #fff;
       margin: 0 auto; padding: 1rem; max-width: 52rem; }
h1 { font-size: 1.6rem; line-height: 1.2; }
h2 { font-size: 1.3rem; margin-top: 2.2rem; border-bottom: 1px solid #d7dde1; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem;  /* a shadow at the edge where a table goes on */
  background: linear-gradient(to right, #fff 30%, #fff0), linear-gradient(to left, #fff 30%, #fff0) 100% 0,
    linear-gradient(to right, #0003, #0000), linear-gradient(to left, #0003, #0000) 100% 0;
  background-repeat: no-repeat; background-size: 40px 100%, 40px 100%, 12px 100%, 12px 100%;
  background-attachment: local, local, scroll, scroll; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #e6eaed; vertical-align: top; }
th { font-weight: 600; color: #4a565e; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.ours td { background: #0b6e9914; }
table.arms td:first-child { white-space: nowrap; } table.arms b { font-weight: 400; } tr.ours b { font-weight: 600; }
small { color: #5b6770; font-size: .85em; font-weight: 400; }
.met, .missed { font-weight: 700; } .met { color: #1a7f37; } .missed { color: #b42318; }
.note, .wrong { padding: .5rem .8rem; border-left: 4px solid #e0b13c; background: #fff8e5; }
.wrong { border-color: #b42318; background: #fdecea; }
svg { width: 100%; height: auto; max-width: 34rem; display: block; }
pre { background: #f5f7f8; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; }
code { font-size: .92em; }
"""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>semistream benchmark</title><style>{style}</style></head><body>
<h1>semistream: benchmark</h1>
<p>Stream batches joined with master data on disk, inside a memory budget. Higher rates are better.</p>
{body}{method}
<h2>Machine and versions</h2>{environments}
<h2>To repeat it</h2>{commands}
</body></html>
"""
