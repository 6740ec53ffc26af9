"""Rows of a cluster: three nodes and a gateway as processes of this machine, which share its processors and
its disk.

CPU is that of all nodes together, as a ratio to one server in the same run. Each group makes a cluster of its
own and removes it. Latencies are those of an open loop at a rate far below what the nodes can do; each p99 is
the median of five windows."""
