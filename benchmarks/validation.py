"""Print ``docs/validation.md``: blind errors on tables that were added later, and errors of
left-out systems over all tables.

``python benchmarks/validation.py > docs/validation.md`` takes about a minute on one core. The blind
figures are those recorded in ``measurements/blind.csv`` when the tables came in; everything else is
computed here, by the corrected formula.
"""

from __future__ import annotations

import csv
from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from remeasured import again, floors, nodes_of, publishers_differ

from simcoll.files.paths import data_folder
from simcoll.libraries.calibration import Calibration
from simcoll.libraries.environment import parse_environment
from simcoll.libraries.fitting import Series, fit_series, formula
from simcoll.libraries.intervals import band_of
from simcoll.libraries.library import load_library
from simcoll.libraries.nccl_decision import own_choices
from simcoll.libraries.prediction import choose, formula_time
from simcoll.libraries.question import P2P, question_on
from simcoll.planning.measured.accuracy import (
    BANDS,
    METHODS,
    Error,
    errors_of,
    left_out_library,
    medians,
)
from simcoll.planning.measured.measurements import PublishedTable, published_tables
from simcoll.topology import load_topology
from simcoll.topology.machine import machine
from simcoll.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from simcoll.libraries.library import Value

HEAD = """# Validation

{lead}
Median error in percent of predicted times of NCCL, for small (below 64 KiB) / middle / large sizes (from 64 MiB). Without any
measurement of a machine, large messages are off by 4 to 8 %, small ones by a tenth to a quarter; two measured sizes remove most of that. *Two
points* and *six points* are calibrations with that many rows of the same table.

`python benchmarks/validation.py` prints this page. An error is |predicted / measured - 1|, of the corrected formula.

## Blind predictions

{tables} tables of nccl-tests collected on {date}, after the library files had been fitted to the {development} development tables. Their
machines were described first (topology, nodes, environment), then all were predicted once. *Healthy* leaves out tables with a problem
according to their publisher or their own rows, tables of machines that are not fully described, and RCCL. Each cell: median over tables
of the table's median error; in brackets the p90 of all rows. A table of one row counts as much as one of thirty. The 14 tables of A100
PCIe at two sockets use a topology that is not shipped, because the model has no limit of a socket. Some tables come from publishers of
development tables (CSCS, AWS, Oracle, Google).

"""
NEXT = """
## Left-out systems, over all tables

{added} of these tables, of healthy and described machines with a permanent source, are among the measurements; the
shipped library is fitted to all {all}. For each figure the numbers are fitted again **without** the tables of its system, starting
from the whole fit, with its slopes. The mechanisms are chosen with knowledge of all tables, so
these figures are better than blind ones. NCCL only.

| | {ways} |
|---|---|---|---|
"""
ENDING = """
Rows over 1.5 times the time of a larger size, or over twice their time in place, are left out:
`measurements/rows_left_out.csv` names {rows}. The weight of a table falls with the number of tables of its system.

## Remaining errors

| system | tables | small | middle | large |
|---|---|---|---|---|
"""
LATER = """
## Later tables

{tables} tables that were published after the fit. No number is fitted to them, except for the growth of LL on A100, which is read off
those of Azure ML and thanos on one node; the treatment of trees, of LL on A100 and of hops under LL ([reasons](#reasons)) was chosen with
knowledge of them. Predicted blind, `all_reduce-h100-crusoe-2n16` and `all_reduce-a100-40-oke-2n16-slurm` were off by 51 / 24 / 0.9 and - / - / 7.4 %, and the former with two points by
6.3 / 16 / 3.4 %. Five with few rows were found on 29 November 2026: two nodes of AWS p6-b200 (blind 8.1 / - / - %), p4d (10.0 / - / -), p5 (14 / - / -) and p6-b300 (- / 11 / -, NCCL
2.31.2), and two DGX Spark (12 / 40 / -), whose page does not say whether `NCCL_IB_HCA` names one half of the port or both.

Figures of five more publishers were found on 30 November 2026, and are not among the measurements, as the pages were seen in part: measured, and blind with the 90 % interval. All 16 rows lie inside it, and 14 inside that of 50 %.

| machine | all_reduce | measured | predicted | source |
|---|---|---|---|---|
| 16 DGX-2, 256 V100, NCCL 2.8.4 | 32 MiB | 1.46 ms | 1.39 ms (0.91 to 2.64) | [nccl-tests 78](https://github.com/NVIDIA/nccl-tests/issues/78) |
| | 64 MiB | 2.66 ms | 2.63 ms (2.07 to 3.56) | |
| | 128 MiB | 4.26 ms | 4.57 ms (3.59 to 6.18) | |
| | 256 MiB | 7.95 ms | 7.86 ms (6.19 to 10.6) | |
| | 512 MiB | 16.1 ms | 14.4 ms (11.4 to 19.6) | |
| | 1 GiB | 29.9 ms | 27.4 ms (21.5 to 37.1) | |
| | 2 GiB | 54.3 ms | 50.1 ms (39.5 to 67.9) | |
| 2 nodes of 4 H100, 4 NICs of 200 Gbit/s assumed (`snellius-h100`), `NCCL_ALGO=RING` | 512 MiB | 10.1 ms | 10.2 ms (9.15 to 11.9) | [nccl-tests 252](https://github.com/NVIDIA/nccl-tests/issues/252) |
| | 1 GiB | 20.1 ms | 20.2 ms (18.2 to 23.7) | |
| | 2 GiB | 39.9 ms | 40.2 ms (36.2 to 47.1) | |
| | 4 GiB | 77.2 ms | 80.1 ms (72.2 to 94.0) | |
| | 8 GiB | 158 ms | 160 ms (144 to 188) | |
| 2 of 8 A100, one process | 32 and 64 B | 10.1 us | 12.8 us (7.1 to 22.1) | [nccl 583](https://github.com/NVIDIA/nccl/issues/583) |
| 8 V100 of a p3dn (`dgx-1v`), one process | 8 B | 60.0 us | 35.1 us (24.8 to 68.8) | [nccl 318](https://github.com/NVIDIA/nccl/issues/318) |
| 8 MI300X, one process | 8 MiB | 91.1 us | 97.5 us (82.6 to 167) | [hpc-ai-envs 30](https://github.com/crickett-hpe/hpc-ai-envs/pull/30) |

| table | ranks | uncalibrated: small / middle / large | two points: small / middle / large |
|---|---|---|---|
"""
FORCED_HEAD = """
## Forced choices

Published figures of an algorithm and protocol that variables force, which NCCL's own estimate would not show: bus bandwidth in GB/s as measured, by NCCL's estimate, and as
predicted. NCCL counts LL128 between two Blackwell GPUs at 640 GB/s, and 2.31.2 prefers it there; predictions have it below Simple, as measured. No table among the measurements forces rings on B300.

| machine | NCCL | variables | size | measured | NCCL's estimate | predicted | source |
|---|---|---|---|---|---|---|---|
"""
_PAIR = "https://github.com/NVIDIA/nccl/pull/2343"
_STAS = "https://github.com/stas00/ml-engineering/blob/744d01e1/network/README.md"
_GJ_AION = "https://github.com/NVIDIA/nccl-tests/issues/309"
FORCED = (
    ("dgx-b200", 2, "2.30", "NCCL_ALGO=Ring,NCCL_PROTO=LL128", 2**30, 384, _PAIR),
    ("dgx-b200", 3, "2.30", "NCCL_ALGO=Ring,NCCL_PROTO=LL128", 2**30, 479, _PAIR),
    ("dgx-h200", 8, "2.27", "NCCL_ALGO=NVLS", 2**34, 480, _STAS),
    ("dgx-h200", 8, "2.27", "NCCL_NVLS_ENABLE=0", 2**34, 367, _STAS),
    ("superpod-h100", 16, "2.27", "NCCL_ALGO=Ring", 2**25, 229, _GJ_AION),
)
"""Machine, ranks, version, variables, size, and measured bus bandwidth of an all_reduce in GB/s."""
REASONS = """
## Reasons

* **Slingshot.** Each machine uses other plugins and settings: two settings of Polaris differ by a factor of 2 at small sizes,
  and NCCL 2.23 on Alps (2025) keeps LL up to 4 MiB where a later plugin on the same nodes does not. `slingshot-alps` and `slingshot`
  are separate fabrics; a system that is alone on its fabric is predicted from guesses when it is left out.
* **LL on A100.** NCCL gives a ring under LL one channel for each 4 KiB and rank (512 threads of 8 B), so that latency grows with the
  message up to 32 KiB: by 0.27 us a hop as fitted on all GPUs, and by 0.8 us on A100, which is read off two later tables of one node
  (11.2 us over 14 hops), where no network and no CPU can be the cause. In the development tables of one node a single process launches
  for all GPUs, which hides it. Forced rings on two DGX A100, 1 KiB to 256 MiB, are off by a median of 8 % and by at most 30 %. Fitted to
  all tables the growth would be 1.28 us, without any one system 1.20 to 1.42. Within a node, of this growth and the size over the rate
  the longer counts; over nodes their sum is closer. The cost: runs by a single process, calibrated with two points, are off by 5.8 %
  instead of 4.4 % at small sizes of the development tables. Why 256 KiB to 4 MiB over two nodes of A100 take 15 to 30 % longer than
  predicted is not known. The rings' time falls from 135 us at 512 KiB to 120 at 1 MiB, where the run leaves LL for LL128; NCCL's formula
  does that from 638 KB on without the 2 us that posting a message takes on AMD, so the version that ran had no such overhead.
* **Trees under LL.** NCCL's table of the shortfall of trees, 0.4 of the rate at 256 KiB, decides its choice only, and the measured share
  of LL's rate that rings reach does not hold for trees. So neither counts: two nodes of H100 take 38.8 and 48.7 us at 128 and 256 KiB,
  predicted 43.5 and 51.4. The cost: on EFA, where LL slows down to 64 KiB, the middle band with two points is up to 6 points worse, and
  on Slingshot with 64 ranks and more up to 18; 17 systems gain there and 10 lose.
* **LL in a node** has a base and a hop of each class of GPU, which the 2, 4 and 8 GPUs of one lab tell apart: straight lines over 1 to 14
  hops. Runs of one node that start late say nothing about the library, so 0.6 of their delay is taken out; nothing is added to a run that
  starts early. The growth up to 32 KiB is one of 4 KiB for each rank, which NCCL gives a channel before it opens the next: with 2 GPUs it
  ends at 8 KiB, with 4 at 16.
* **A rank's own step.** The chunk that a rank only copies or reduces takes a share of a step in which it sends nothing, so two GPUs reach
  0.7 of the rate of a ring and eight 0.94. Reducing int8 takes a little more. In an all_to_all a rank copies its own block.
* **One process for all GPUs** launches on one after the other, 2.4 to 5.8 us each by host, while the operation before is running: the
  time on the GPUs and that of the host add as squares do. The runs that suggest a constant instead have middle sizes that are
  slow for another reason (SuperBench: 60 us at 512 KiB of all_reduce, where a process for each GPU takes 28).
* **Reduction in switches** starts at 25 us, and its pipeline fills with the size: 45 to 50 us more from some ten MiB on. A constant of 65
  to 76 us fits only where the choice never uses it below 16 MiB.
* **NCCL's choice.** On 4 A100, all_gather leaves LL for Simple at 2 MiB and jumps from 19 to 53 us, where the fastest by corrected times
  would be LL128. Over nodes whose graphs are known from NCCL itself, left-out errors of its own choice are 18.4 / 12.8 / 6.9 %, of the
  fastest 18.4 / 16.7 / 6.7; where the search finds the graphs, they are 24.2 / 21.5 / 8.4 and 24.2 / 21.0 / 6.7 over all tables, so that
  there the fastest counts.
* **RCCL chooses by sizes**, which its source states, and so do predictions. Within a node of 8, an all_reduce takes 13 us from 1 to 128 KiB, and 23 from 128 to 512 B: the first goes by
  MSCCL's all-pairs algorithm, the second by rings under LL, whose latency by RCCL's own numbers is 23.2 us. A ring of which few blocks have data takes less: 16.3 us with one of
  eight, 18 with four. In a graph, sums of 32 B to 1 MiB go by MSCCL++, in 6 to 19 us; 8 B, and 2 MiB and more, take the same time with and without a graph. Over two nodes of MI300X, 1 MiB
  takes longer (LL, 415 us) than 2 MiB (LL128, 319 us). Two points, of which one is 8 B, calibrate a ring, and not what runs from 1 KiB on: rows below 16 KiB lie 14 % from such a
  calibration in a node, and 24 % over several, so that a launch counts only beyond that.
* **Times grow with the size** as long as algorithm and protocol stay: `python benchmarks/growing_times.py 10000` found no fall in 10,000 random
  combinations of machine, variables and collective, with 80 sizes each (127 s of CPU time, on a busy machine). Where the choice changes, a larger size took less time 712 times: NCCL, RCCL, or the rule
  of a machine without graphs, leaves a choice too late there, as it does on two nodes of A100 (135 us at 512 KiB, 120 at 1 MiB). 295 of the 712 fall below the 90 % interval of the
  time before. The benchmark lists them by change, machine and cause:

  | of 295 | where | cause |
  |---|---|---|
  | 135 | mostly one node of NVLink or xGMI, from LL | `NCCL_MAX_CTAS`, without which none is left: times count the limit, the estimates of NCCL and RCCL do not, so that they leave LL where all channels should. NCCL's host code does so too: on 8 A100 at 2 MiB, and on 8 H100 at 4 MiB of all_gather, with 24 channels as with limits of 4 and 8, and with the same estimate |
  | 59 | Slingshot of Alps, from a ring under LL to Simple | NCCL with that plugin: 4 nodes were measured at 1,481 us for 1 MiB under LL, and at 210 for 2 MiB. That the other collectives fall as far is not measured |
  | 16 | MI300X, trees from LL to LL128 over nodes, and rings from LL to MSCCL++ | RCCL's sizes: 415 us were measured for 1 MiB, and 319 for 2 MiB |
  | 25 | AMD's GPUs over nodes, from LL128 to Simple | RCCL's sizes: AMD measured 809 us for 64 MiB on 16 MI350X under LL128, where they had it, and 661 under Simple (github.com/ROCm/rocm-systems, pull request 9406) |
  | 36 | sockets, a single NIC, or no peer access | variables that choose links, without which, or without these and `NCCL_MAX_CTAS`, none is left; not measured |
  | 16 | racks of 16 and more Blackwell GPUs, from a ring under LL to reduction in switches | NCCL's estimate: it counts 0.6 us for a hop of LL, which takes 1.3 on 2 to 8 of these GPUs, on a straight line, so that 16 GPUs leave LL at 128 KiB, where both take 25 us by its estimate, and 48 and 28 as predicted. With NCCL's number for the hop, and in two cases without `NCCL_MAX_CTAS`, no fall is left. No published table has these sizes on a rack |
  | 3 | V100 over nodes, rings from LL to LL128 at 1.2 to 1.3 MiB | NCCL's estimate: it counts on all of the limit of LL for hosts, of which rings reach 0.41 on A100 and over plugins (`correction.net_ll_share`). With all of it no fall is left. Two nodes of A100 were measured so, no V100 |
  | 4 | AMD's GPUs over nodes, from trees to rings under Simple at 104 to 244 MiB | RCCL's sizes, which leave trees at 128 MiB on two nodes and at 256 on more, and trees' shortfall below that, which is the one of NVIDIA's tables. Without it no fall is left, but at 32 to 128 MiB two tables of two nodes show it: predicted 2 to 6 % too slow with it, and 4 to 14 % too fast without. No table has more nodes there |
  | 1 | two nodes of MI300X without peer access, trees from LL to Simple at 0.8 MiB | RCCL's size of 1 MiB for LL, as measured for LL128, which is not offered there |

  LL has the lowest of three rates over nodes: half of what the network carries, since half of its bytes are flags; what kernels reach; and a share of NCCL's limit for hosts. On Hopper and Blackwell over
  InfiniBand and RoCE all of that limit, or 0.87 (`class.*.net_ll_share`): an all_gather on two nodes of H200 or B200 takes 5 to 8 us longer at 512 KiB than at 64 KiB, and 27 if A100 and plugins
  decide, which reach 0.41 (`correction.net_ll_share`). For broadcast and reduce it is the whole limit, since no table has them. RCCL's number for kernels, 0.08 of all channels, holds for trees (on 16 MI355X 32 KiB more take
  2.7 us, predicted 3.2), and not for rings: it is the same for LL128, of which 0.39 were measured on 16 MI350X, and with half of the network for LL, a reduce_scatter takes the same time under LL and
  LL128, and under LL128 and Simple, within 6 % at the sizes that AMD tuned, on 2, 4 and 16 nodes of MI300X. No table has such a ring. Two DGX Spark, with one NIC each and host memory in between, are slower: 49 % off.
* **Rings under Simple get faster with the size** where NVSwitches join the GPUs of a node: by 1.6 % for each doubling, alike on A100, Hopper and Blackwell, up to 16 GiB (`correction.ring_rise`). An all_gather on 8
  B200 has 422, 566, 596, 616 GB/s of bus bandwidth from 64 to 512 MiB at one publisher, and 427, 568, 598, 617 at another; the first goes on to 672 at 16 GiB. On Hopper and Blackwell the hops of a ring also overlap
  its transfer: they add as squares do (`class.*.ring_overlap`); fitted to rings of one node alone, the power is 1.7 and 2.4, and 1.0 on A100. Held against
  tables of one side while fitted to the other's (the lab with most tables, and all others), these rings from 64 MiB on are off by, for 2 / 4 / 8 GPUs:

  | | one rate, sum | rise and overlap |
  |---|---|---|
  | A100, fitted to the lab, others' | 11.6 / - / 7.5 % | 9.5 / - / 4.5 % |
  | Hopper, fitted to the lab, others' | - / 4.8 / 2.5 | - / 3.5 / 0.7 |
  | Blackwell, fitted to the lab, others' | 4.3 / 2.1 / 2.6 | 4.2 / 1.3 / 1.5 |
  | A100, fitted to others, the lab's | 9.1 / 9.3 / 8.7 | 15.3 / 8.9 / 3.9 |
  | Hopper, fitted to others, the lab's | 4.7 / 3.5 / 3.7 | 3.9 / 2.2 / 3.5 |
  | Blackwell, fitted to others, the lab's | 5.9 / 4.2 / 3.9 | 2.4 / 1.9 / 3.1 |

  Other links show no rise: with it on PCIe, xGMI and the direct links of GH200 too, the fit halves it, and PCIe is off by 13 / 7.6 % at middle and large sizes instead of 9.5 / 6.4. Over nodes, rings over InfiniBand and RoCE
  have one rate from 512 MiB on: for each doubling they get 0.1 % slower than predicted, by the median of 28 medians by GPU, network and size. Of the [later tables](#later-tables), to which nothing is fitted, four on A100 came from 6.2, 1.9, 8.6 and 2.0 to 1.9,
  1.1, 8.2 and 1.0 %, and one on four H100 from 1.2 to 3.5; 8 H200 without reduction in switches reach 367 GB/s at 16 GiB, predicted 361 before and 381 now.
* **Messages of an all_to_all** leave LL at 16 KiB since NCCL 2.29, and later before. Under Simple, the last slot of a channel, up to 512
  KiB, leaves the buffer after it has arrived.
* **PCIe servers are of three kinds.** A ring that passes a CPU has the rate of that CPU from port to port (25 GB/s on a server with Intel's,
  22 with AMD's, fitted); below one switch it has that of the slots. `rtx-pro-6000-switch` is one switch, `rtx-pro-6000-direct` two sockets without
  switches, and `rtx-pro-6000` pairs of GPUs below switches of two sockets, so several roots. The routes of a topology tell them apart; a dump and `nvidia-smi topo -m` do by
  their paths: PIX and PXB are switches, PHB, NODE and SYS pass a CPU. Two limits, each by one publisher: of several switches at one CPU, 39 to 41 GB/s were measured, as below one
  switch; and with `NCCL_MIN_NCHANNELS=8`, 38 instead of 22 GB/s on two sockets without switches, where NCCL's search finds no channel that fits, and takes one. Predictions have 21 there.
  The four tables of other publishers that are off by 36 and 45 % are two machines, each alone of its kind. On Azure's four A100, two pairs with NVLink, 30.8 GB/s were measured, where one port
  through the CPU gives 20.5. The graph file of Azure's images (`/opt/microsoft/ncv4/graph.xml`) has rings in both orders, which leave a pair by the ports of both GPUs; with two ports the errors of
  its two tables fall from 6.5 / 36 / 51 to 6.5 / 20 / 24 %, and predictions are too fast: a port that sends and receives at once then carries 15.4 GB/s, not 20.5. NCCL 2.27 to 2.30 find
  rings in one order there, so predictions keep one port. Three A100 of such pairs, of which one is alone and all rings pass its port, have 20 GB/s (github.com/NVIDIA/nccl-tests, issue 178).
  Two RTX 2080 Ti without peer access exchange data in host memory at 0.6 of the rate predicted without their tables; no other
  table passes host memory.
* **Not in the formula**, because over all systems they gain nothing. Rings that cross the network once more than NCCL counts: all_gather
  over nodes improves from 27 to 22 % at small sizes, but eight systems are worse with two points and none is better. Hops under LL that
  get longer up to 64 KiB over nodes instead of 32: better on Slingshot, worse on InfiniBand. LL and LL128 in a node for the longer of
  latency and transfer instead of their sum, and a latency of all_reduce that grows to 128 B with the number of blocks that are not empty:
  no gain.
* **Small sizes on clouds.** The launch time differs by 10 to 30 us between runs on the same machine. Two points of your own
  remove this error.
* **all_gather and reduce_scatter over nodes from 256 KiB to 64 MiB** take up to twice as long as predicted on eight fast NICs
  (B200, 10 nodes of H100); the cause is not known. NCCL's own choice instead of the fastest gives the change from LL128 to Simple at
  256 MiB on ten nodes, but is worse over all: 19.7 instead of 18.4 % in the middle band of 39 such tables, each left out. At small
  sizes they start 2 to 6 us later than the formula says, compared with all_reduce of the same run, on five of seven pairs of machine
  and size without Slingshot; 1 and 4 us earlier on RTX 2080 and one node of B200. Over nodes that compares rings with trees. Not
  corrected.
* **GPU and NIC, or two GPUs, at different sockets** (A100 PCIe): the model has no limit for a socket, so such tables are not
  fitted.
* **send_recv inside a node**, up to 256 MiB, takes up to 5 times the bytes over the peak rate on A100, H100 and B200; blind predictions
  were as much too fast. The cause is NCCL's number of channels for a message, which predictions take from its source (`addP2pToPlan`): 32
  channels of about 20 GB/s are shared by the messages to all ranks, so one message among 8 GPUs has 4 of them up to 64 MiB, 8 up to 128,
  16 up to 256, and 32 beyond; B200 takes 792, 799 and 808 us at these three sizes. Over nodes it has 2, from some ranks on 1: ten H100
  nodes reach 25 GB/s of NICs of 50. That 10 nodes of 8 reach only 15 is not explained.
* **20 racks of GB200**: the measured rate is half of that of two racks.
* **Trees over two nodes.** On four NICs of 12.5 or 25 GB/s, or eight, trees carry 0.81 to 0.91 of the sum of the NICs, where NCCL's
  formula says 0.70: its factors for trees describe kernels. They decide the choice alone, except on V100, where two tables measured 0.51
  and 0.70. Nine tables are off by a median of 5 % (27 % with NCCL's factors), and two later ones, NREL Kestrel and AWS p4d, by 16 and 7 %
  (36 and 16 %). Two runs kept to rings on such NICs, one with TCPX and one of an old NCCL, and are predicted worse.
* **One call has one time.** Of 1,620 isolated calls (nine collectives of 1 KiB, 1 MiB and 256 MiB on 60 shipped machines of up to 64 ranks), prediction, plan, and workload in both tiers
  differ by at most 0.0003 % (`python benchmarks/one_time.py`; a workload has no send_recv). The played time differs from the formula's by more than a tenth on 12 of them, which `perf` and
  `step` print: all_to_all (6), gather, scatter and send_recv (2 each), on V100 nodes whose GPUs are not all joined and on PCIe boxes with two sockets.

Where events take longer than the formula, shared links are the reason, and the formula is below the lower bound or the measurements:

* **PCIe boxes with two sockets** (RTX PRO 6000): rings take 18 to 36 % longer, all_to_all 2.7 times as long, because they share the
  40 GB/s between the sockets. all_to_all of 1 GiB: 53.7 ms, bound 53.7, formula 19.9. Eight such GPUs measured 5.8 to 24 GB/s each with
  all pairs at once (github.com/voipmonitor/rtx6kpro), 17.5 by events; all_reduce is below.
* **DGX-1V, all_to_all**: 1.93 times as long. Three of seven peers have no direct link, so blocks cross 10 links, not 7, and single links
  carry three of them. 256 MiB: 4.04 ms, bound 3.44, formula 2.10.

Plateaus that nothing was fitted to, all_reduce unless named, in GB/s of bus bandwidth:

| GPUs | published | predicted | source |
|---|---|---|---|
| 8 H200, 4 GiB | 475 | 469 | github.com/NVIDIA/nccl-tests, issue 272 |
| 8 H100, 8 GiB | about 480 | 470 | a maintainer in github.com/NVIDIA/nccl-tests, issue 212 |
| 8 H100, 8 GiB, others than all_reduce | 370 | 355 (all_gather) to 369 (broadcast) | as above |
| 8 A100, 8 GiB | about 230 | 227 | a maintainer in github.com/NVIDIA/nccl-tests, issue 149 |
| 8 RTX PRO 6000, 32 MiB, switches | 40.1 | 41.7 | github.com/voipmonitor/rtx6kpro, hardware/pcie-bandwidth.md |
| 8 RTX PRO 6000, 32 MiB, two sockets without switches | 22.2 | 20.7 | as above |
| 8 GB200 of two trays, 8 GiB | 811 | 845 | lixueduan.com, posts/ai/13-gb200-mnnvl-nccl-test |

Not mapped to a machine, so neither predicted nor fitted: T4 and RTX PRO 6000 on EFA without GPUDirect, H20, A800, H200 NVL, H100 NVL and
PCIe pairs, L40S, V100 on the first EFA, and tables whose page does not name the NICs.
"""
LARGEST = 12
GROUPS = {
    "NVLink, 8 GPUs and more": "6 / 7 / 2.5",
    "NVLink, fewer GPUs": "8 / 8 / 4",
    "one process": "12 / 15 / 5",
    "PCIe": "15 / 15 / 8",
    "over nodes": "15 / 15 / 5",
    "RCCL": "15 / 20 / 6",
}
"""Kinds of machines and launchers, with the uncalibrated errors that are aimed at."""
GROUPS_HEAD = """
## By kind of machine

Left-out errors. *Aim* is the target of the uncalibrated ones.

| | tables | {ways} | aim |
|---|---|---|---|---|---|
"""
GROUPS_TAIL = """
{against_none}
### Six points

{across}

Launch and rate are those of the least and the greatest size, drawn and fading as those of two points, and the deviations at the six sizes are a correction between them, as geostatistics does it
(simple kriging, `simcoll/libraries/residuals.py`). Deviations are the more alike the nearer two sizes are (by e in 3 doublings below 64 KiB, and in 16 above), the nearer their times are (by e in 2
doublings), and by a quarter less under another protocol. Tables of the lab with half of all tables and those of all others have the least error at the same numbers. With one choice of algorithm and
protocol the correction never falls by more than the time grows (isotonic regression), and a row of 1.5 times the time of a larger size does not count.

With one rate of rings at all sizes:

| rows between six points, NCCL | small / middle / large | mean of tables |
|---|---|---|
| without kriging: four fifths of the deviations, on lines over the size, and the form of the fit chosen by leaving rows out | 4.0 / 4.6 / 1.6 | 6.9 / 6.7 / 3.4 |
| the same, but launch and rate always of the ends | 4.1 / 4.7 / 1.5 | 7.0 / 6.7 / 2.8 |
| kriging | 3.8 / 4.2 / 1.7 | 6.4 / 6.2 / 2.9 |
| kriging, and times never fall | 3.8 / 4.1 / 1.7 | 6.3 / 6.3 / 2.8 |
| *for comparison: every row from both of its neighbours, which all are measured* | 2.1 / 3.6 / 0.8 | 3.3 / 5.0 / 1.6 |

The aim, 4 / 4 / 2, is reached. Of the middle sizes the last line is what remains if no row is further away than the next: rows of one table scatter by that much, by 7.0 % over several nodes, and six
points come within 0.3 points of it. What was tried: the same estimate of all deviations without launch and rate of the ends, which it then estimates too, has 4.3 / 5.2 / 1.8 %, and
calibrations by it of two points were more exact on average (6.6 / 11.5 / 4.0 instead of 7.2 / 12.0 / 4.1 %), but worse than none on 53 tables instead of 10.
"""
ACROSS = """Rows between two of six calibrated sizes, median error in percent, small / middle / large.

| | rows | one node | several nodes | all |
|---|---|---|---|---|
"""
AGAINST_NONE = """
### Two points against none

Tables of which two points make predictions of the other rows of a band worse than none, by more than the median difference of two publishers (17 / 8 / 1 points).

| | tables | small / middle / large | any band | uncalibrated, same rows | two points |
|---|---|---|---|---|---|
"""
AGAINST_NONE_TAIL = """
Two rows cannot judge their own fit, so the launch is drawn towards none by as much as rows of the library scatter about such calibrations, and both fade: the rate with the distance of
a size from the large row, the launch as operations get longer than the small one, which hides a part of it too. How fast, the rows of other tables tell (`scatter` in the
library files, `python benchmarks/calibrations.py`): from the large row others deviate by a median of 1.2 % for each doubling of the size in a node, and by 1.5 % over several. Of a deviation x,
a share of 1 / (1 + (scatter x doublings / x)²) is left.

A machine that is slower than predicted at its end is so at other sizes too, one that is faster is so near there: of 2 to 6 % by which a node is slower at the large row, all is left at half and at a
quarter of the size, and three quarters at an eighth; of as much by which one is faster 0.67, 0.46, and nothing. So a rate above 1 fades by 0.035 for each doubling in a node, which has the least error, also without
the tables of any one publisher; it is that of its algorithm, as on Alps rings are faster than predicted and trees slower; and a launch below none fades with the size as well. Worse than without, NCCL and RCCL:

| | tables | small / middle / large | errors of NCCL | errors of RCCL |
|---|---|---|---|---|
| launch and rate as fitted: nothing drawn or fading | 40, 2 | 0 / 7 / 34, 0 / 2 / 0 | 3.8 / 8.1 / 1.8 | 15 / 6.8 / 0.2 |
| launch drawn, neither fades | 39, 1 | 0 / 7 / 33, 0 / 1 / 0 | 3.8 / 8.0 / 1.8 | 5.5 / 5.9 / 0.2 |
| the rate fades | 22, 1 | 0 / 6 / 16, 0 / 1 / 0 | 3.8 / 7.7 / 2.2 | 5.5 / 5.9 / 0.3 |
| launch and rate fade, what is faster as what is slower | 18, 1 | 0 / 2 / 16, 0 / 1 / 0 | 3.8 / 7.8 / 2.2 | 5.5 / 5.9 / 0.3 |

What is left, and what remains of it when its row is taken away, so that the next one is the point instead. Three of the nine are within the difference of two publishers of their kind (*more by* 1.0 or less). Two are a
single row apart from its neighbours on both sides, which no calibration by that row can know: 1 GiB of `gb300-4-oci` and of `gb200-oke`; with the next row they are off by 0.8 and 21 %. In the others the prediction has another
shape, which a rate does not change. On two RTX PRO 6000 a reduce_scatter goes from 5 % too fast up to 64 MiB to 7 % too slow at 512, as rings on PCIe have one rate ([rings under Simple](#reasons)); on eight B200 one starts
9 % too slow at 128 MiB. Trees of switches over nodes (gj-aion, p5) are 4 to 30 % too fast below 1 GiB and 5 % too slow there. Over TCPX, Google's all_gather goes from 16 % too slow at 128 MiB to 6 % too fast at 512, and
dstack's takes as long as predicted from 16 to 64 MiB and 1.6 to 1.8 times as long from 512 MiB on.

With one rate of rings at all sizes there were ten: of the three on eight B200 one is left, by 0.9 differences of publishers, and one has come up, by 1.1. None at all is out of reach of two rows: a rate
that was drawn towards none as the launch is, by nothing below 2 / 4 / 6 / 10 %, left 10 / 8 / 6 / 3 tables of that fit, and large sizes off by 2.5 / 3.1 / 3.9 / 4.8 % instead of 2.3, of 5.3 without a calibration.

*More by* is in differences of two publishers of its kind ([the same call, measured again](#the-same-call-measured-again)).

| table | band | its row | others of the band | uncalibrated | two points | more by | with the next row |
|---|---|---|---|---|---|---|---|
"""
PUBLISHERS_DIFFER = {"small": 0.17, "middle": 0.08, "large": 0.01}
SLINGSHOT = ("alps-", "kestrel-", "perlmutter-", "polaris-")
PAIRS = ("azure-nc-",)
PORT_RATES = ("p2p_rate", "pcie.ring_share")
NETWORK_RATES = (".share", ".tree_share")
OWN_STEP = ("own_step", "own_step_bytes")
LL_STARTS = ("ll_base_factor", "ll_hop_factor", "ll_growth", "p2p_start", "p2p_peer")
RATES = (*OWN_STEP, "ring_share", "nvls_share", "p2p_share")
PCIE_NUMBERS = (*LL_STARTS, "p2p_rate", "ring_share")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a kind of machine misses its aim.

    Attributes
    ----------
    group, of_lab
        The kind, and whether its tables are those of the lab with most tables.
    words
        The cause.
    topologies, collectives
        Tables that have it, by the beginning of their topology and by their collective.
    places
        Or numbers that nobody else's tables tell: by the last words of their places in the library
        file, from which they are taken as they were fitted to all tables.
    ports
        Or the number of ports by which rings leave a pair of GPUs on these topologies, where the
        model has one.
    """

    group: str
    of_lab: bool
    words: str
    topologies: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    ports: int = 1


CAUSES = (
    Cause("over nodes", False, "Slingshot", SLINGSHOT),
    Cause("over nodes", False, "Slingshot and calls made of sends", SLINGSHOT, P2P),
    Cause(
        "over nodes",
        False,
        "also 10 nodes of H100 by one publisher, 1 to 8 ranks of each",
        (*SLINGSHOT, "dgx-h100"),
        P2P,
    ),
    Cause("over nodes", False, "rates of the networks", places=NETWORK_RATES),
    Cause("NVLink, 8 GPUs and more", True, "starts of LL and of sends", places=LL_STARTS),
    Cause("NVLink, 8 GPUs and more", True, "a rank's own step, rates of links", places=RATES),
    Cause("NVLink, fewer GPUs", True, "a rank's own step", places=OWN_STEP),
    Cause("NVLink, fewer GPUs", False, "processes of SURF, which launch late", ("snellius-",)),
    Cause("one process", False, "a rank's own step, rates of links", places=RATES),
    Cause("PCIe", True, "starts of LL and of sends", places=LL_STARTS),
    Cause("PCIe", False, "starts, rates of CPUs and of PCIe", places=PCIE_NUMBERS),
    Cause("PCIe", False, "four A100 in pairs with NVLink", PAIRS),
    Cause("PCIe", False, "rings that leave a pair by one port: by two", PAIRS, ports=2),
)
CAUSES_HEAD = """
Causes of missed aims, tested by taking them away: uncalibrated left-out errors of a kind without the tables of a cause, or, in italics, with the shipped values of numbers that hardly
any other system's tables determine, such as a rank's own step with 2 and 4 GPUs. All NCCL together is aimed at 12 / 12 / 4, with two points at 4 / 9 / 2.5, and with six at 4 / 4 / 2: large sizes
without a calibration are missed, by 4.4, and would be 3.6 without calls over nodes, whose rates follow from other machines.

| kind | without, or *with the shipped* | tables | small / middle / large | without the cause | aim |
|---|---|---|---|---|---|
"""
LAB = "NVIDIA AIConfigurator"
LAB_HEAD = """
### One lab, later

178 tables of NVIDIA AIConfigurator (all_gather, all_reduce, all_to_all, reduce_scatter; 2, 4 and 8 GPUs of one node; half and int8; one
thread for each GPU; NCCL 2.23 to 2.29.2; 40 warm-up runs, 100 timed), collected on 28 November 2026 and predicted blind, with a thread taken
for a process, and half and int8 for float. The page states no variables of NCCL, so none are assumed.
Its tables of L40S are left out: two GPUs reach 20 GB/s, four 5, and eight 1.2, and what joins them is unknown. In the fit all tables
together count as those of one system.

"""
RCCL_LATER = "RCCL, later"
RCCL_HEAD = """
### RCCL, later

13 tables of all_reduce by rccl-tests on MI300X, MI325X, MI350X and MI355X, collected on 28 November 2026 and predicted blind, with NCCL's latencies and
choice; predictions of today choose as RCCL's source says, and start with its latencies ([reasons](#reasons)). Two of them stay out of the fit: an Azure machine whose owner later found
NUMA balancing to slow it down, and two nodes (AAC10) whose network takes 219 us for 8 B, five times as long as elsewhere.

"""
HEALTHY = "healthy, NCCL"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}" if value < 0.1 else f"{100 * value:.0f}"


def _cell(errors: Iterable[Error]) -> str:
    found = medians(errors)
    return " / ".join(_percent(found[band]) if band in found else "-" for band in BANDS)


def _blind_rows() -> list[dict[str, str]]:
    with (data_folder("measurements") / "blind.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _first_groups() -> set[str]:
    """Groups of the first collection."""
    groups = (row["group"] for row in _blind_rows())
    return {group for group in groups if not group.startswith((LAB, RCCL_LATER))}


def _lead(errors: Sequence[Error]) -> Iterator[str]:
    """The table at the top: blind, left out of the fit, and the noise of measurements."""
    rows = [row for row in _blind_rows() if row["group"] == HEALTHY]
    medians_of = {(row["way"], row["band"]): row["median_of_tables"] for row in rows}
    blind = (" / ".join(medians_of[way, band] for band in BANDS) for way in METHODS)
    left_out = (_cell(error for error in errors if error.method == way) for way in METHODS)
    yield "| tables of | number | uncalibrated | two points | six points |\n|---|---|---|---|---|\n"
    tables = max(int(row["tables"]) for row in rows)
    yield f"| machines to which no number was fitted (blind) | {tables} | {' | '.join(blind)} |\n"
    tables = len({error.table.name for error in errors})
    yield f"| systems whose tables are left out of the fit | {tables} | {' | '.join(left_out)} |\n"
    yield "| two publishers of one kind of system differ by | | 17 / 8 / 1 | | |\n"


def _blind(collection: str = "") -> Iterator[str]:
    """The recorded figures of a later collection, by how its groups begin, or of the first one."""
    rows = [
        row
        for row in _blind_rows()
        if (row["group"].startswith(collection) if collection else row["group"] in _first_groups())
    ]
    cells = {(row["group"], row["way"], row["band"]): row for row in rows}
    yield f"| | tables | {' | '.join(f'{way}: small / middle / large' for way in METHODS)} |\n|---|---|---|---|---|\n"
    for group in dict.fromkeys(row["group"] for row in rows):
        line = [group, str(max(int(row["tables"]) for row in rows if row["group"] == group))]
        for way in METHODS:
            found = [cells.get((group, way, band)) for band in BANDS]
            line.append(
                " / ".join(
                    f"{row['median_of_tables']} ({row['p90']})" if row else "-" for row in found
                )
            )
        yield f"| {' | '.join(line)} |\n"


def group_of(table: PublishedTable) -> str:
    """The kind of machine and launcher of a table, as goals are set for them."""
    facts, launcher = machine(table.machine()), table.settings().launcher
    ranks = sum(facts.domain_ranks)
    if table.library == "rccl":
        return "RCCL"
    if facts.domains > 1:
        return "over nodes"
    if facts.inside in {"pcie", "host"}:
        return "PCIe"
    if launcher == "one-process":
        return "one process"
    return "NVLink, 8 GPUs and more" if ranks >= 8 else "NVLink, fewer GPUs"


def _by_group(errors: Sequence[Error]) -> dict[str, list[Error]]:
    """The errors of each kind of machine."""
    tables_by_name = {error.table.name: error.table for error in errors}
    group_by_name = {name: group_of(table) for name, table in tables_by_name.items()}
    by_group: dict[str, list[Error]] = defaultdict(list)
    for error in errors:
        by_group[group_by_name[error.table.name]].append(error)
    return by_group


def _with_numbers(table: PublishedTable, changes: Mapping[str, Value]) -> list[Error]:
    """Uncalibrated errors of a table, left out of the fit, with some numbers in their place."""
    library = left_out_library(table.library_file, table.system).with_values(changes)
    predict = formula(table.collective, table.machine(), library, table.settings())
    times_fs = predict([size for size, _ in table.rows], Calibration())
    return [
        Error(table, METHODS[0], size, time_ns, round(time_fs / 10**6))
        for (size, time_ns), time_fs in zip(table.rows, times_fs, strict=True)
    ]


def _with_shipped(table: PublishedTable, places: tuple[str, ...]) -> list[Error]:
    """Uncalibrated errors of a table, left out of the fit but for some numbers."""
    shipped = load_library(table.library_file).values
    changes = {
        place: value
        for place, value in shipped.items()
        if place.startswith(("class.", "cpu.", "fabric.")) and place.endswith(places)
    }
    return _with_numbers(table, changes)


def _by_ports(table: PublishedTable, cause: Cause) -> list[Error]:
    """Uncalibrated errors of a table if its rings leave a pair by several ports at once."""
    ports = cause.ports if table.topology.startswith(cause.topologies) else 1
    library = left_out_library(table.library_file, table.system)
    places = [place for place in library.values if place.endswith(PORT_RATES)]
    return _with_numbers(table, {place: ports * library.number(place) for place in places})


def _causes(errors: Sequence[Error]) -> Iterator[str]:
    """What is left of the errors of a kind without a cause."""
    yield CAUSES_HEAD
    by_group = _by_group(errors)
    for cause in CAUSES:
        of_kind = [
            error
            for error in by_group[cause.group]
            if error.method == METHODS[0] and (error.table.system == LAB) == cause.of_lab
        ]
        tables = {error.table.name: error.table for error in of_kind}
        words, count = cause.words, len(tables)
        if cause.places:
            words = f"*{words}*"
            rest = [
                error for table in tables.values() for error in _with_shipped(table, cause.places)
            ]
        elif cause.ports > 1:
            words = f"*{words}*"
            rest = [error for table in tables.values() for error in _by_ports(table, cause)]
        else:
            rest = [
                error
                for error in of_kind
                if not (cause.topologies and error.table.topology.startswith(cause.topologies))
                and error.table.collective not in cause.collectives
            ]
            count -= len({error.table.name for error in rest})
        title = f"{cause.group}, {LAB if cause.of_lab else 'others'}"
        cells = (title, words, str(count), _cell(of_kind), _cell(rest), GROUPS[cause.group])
        yield f"| {' | '.join(cells)} |\n"


def _groups(errors: Sequence[Error]) -> Iterator[str]:
    """Left-out errors by kind of machine, of the lab with most tables and of all others."""
    by_group = _by_group(errors)
    for group, goal in GROUPS.items():
        for of_lab, name in ((True, LAB), (False, "others")):
            part = [error for error in by_group[group] if (error.table.system == LAB) == of_lab]
            if part:
                tables = len({error.table.name for error in part})
                cells = (_cell(error for error in part if error.method == way) for way in METHODS)
                yield f"| {group}, {name} | {tables} | {' | '.join(cells)} | {goal} |\n"


def _band_medians(errors: Sequence[Error]) -> dict[str, float]:
    """The median error of one table in each band that it has rows in."""
    by_band: dict[str, list[float]] = defaultdict(list)
    for error in errors:
        by_band[error.band].append(abs(error.relative))
    return {band: float(np.median(values)) for band, values in by_band.items()}


def _against_none(errors: Sequence[Error]) -> str:
    """On how many tables two points are worse than none, and on which by most."""
    by_table: dict[str, list[Error]] = defaultdict(list)
    for error in errors:
        by_table[error.table.name].append(error)
    excess: dict[str, dict[str, float]] = {}
    plain: dict[str, list[Error]] = defaultdict(list)
    calibrated: dict[str, list[Error]] = defaultdict(list)
    for name, of_table in by_table.items():
        two = [error for error in of_table if error.method == METHODS[1]]
        if not two:
            continue
        sizes = {error.size_bytes for error in two}
        none = [
            error for error in of_table if error.method == METHODS[0] and error.size_bytes in sizes
        ]
        library = two[0].table.library
        plain[library] += none
        calibrated[library] += two
        before, after = _band_medians(none), _band_medians(two)
        excess[name] = {band: after[band] - before[band] for band in after}
    text = AGAINST_NONE
    for library in sorted(plain):
        names = {error.table.name for error in plain[library]}
        worse = {
            name: [band for band in excess[name] if excess[name][band] > PUBLISHERS_DIFFER[band]]
            for name in names
        }
        counts = " / ".join(str(sum(band in bands for bands in worse.values())) for band in BANDS)
        cells = (
            *(library.upper(), str(len(names)), counts, str(sum(map(bool, worse.values())))),
            *(_cell(plain[library]), _cell(calibrated[library])),
        )
        text += f"| {' | '.join(cells)} |\n"
    places = [
        (BANDS.index(band), -more, name)
        for name, bands in excess.items()
        for band, more in bands.items()
        if more > PUBLISHERS_DIFFER[band]
    ]
    lines = (_with_next_row(by_table[name], BANDS[place]) for place, _, name in sorted(places))
    return text + AGAINST_NONE_TAIL + "".join(lines)


def _with_next_row(of_table: Sequence[Error], band: str) -> str:
    """A table on which two points are worse than none in a band, and what they are with the row
    next to its own as the point.
    """
    table = of_table[0].table
    by_method: dict[str, dict[int, float]] = defaultdict(dict)
    for error in of_table:
        by_method[error.method][error.size_bytes] = error.relative
    none, two = by_method[METHODS[0]], by_method[METHODS[1]]
    points = sorted(set(none) - set(two))
    sizes = [size for size in two if band_of(size) == band]
    usual = float(np.median([none[size] for size in sizes]))
    own = max(points, key=lambda size: abs(none[size] - usual)) if band == "middle" else points[-1]
    near = min(two, key=lambda size: abs(np.log(size / own)))
    library = left_out_library(table.library_file, table.system)
    predictor = formula(table.collective, table.machine(), library, table.settings())
    times_fs = {size: time_ns * 10**6 for size, time_ns in table.rows}
    rows = tuple((size, times_fs[size]) for size in sorted({*points, near} - {own}))
    calibration = fit_series([Series(table.collective, table.ranks, rows, predictor)])
    others = [size for size in sizes if size != near]
    predicted = dict(zip(others, predictor(others, calibration), strict=True))
    next_errors = [abs(predicted[size] / times_fs[size] - 1) for size in others]
    before, after = (float(np.median([abs(of[size]) for size in sizes])) for of in (none, two))
    cells = (
        f"{100 * none[own]:+.0f}",
        f"{100 * usual:+.0f}",
        _percent(before),
        _percent(after),
        f"{(after - before) / publishers_differ(nodes_of(table), band):.1f}",
        _percent(float(np.median(next_errors))) if next_errors else "-",
    )
    return f"| {table.name} | {band} | {' | '.join(cells)} |\n"


def _across(errors: Sequence[Error]) -> str:
    """Errors with six points between two sizes of one choice, and of different ones."""
    by_table: dict[str, list[Error]] = defaultdict(list)
    for error in errors:
        by_table[error.table.name].append(error)
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for of_table in by_table.values():
        table = of_table[0].table
        six = [error for error in of_table if error.method == METHODS[2]]
        if not six:
            continue
        library = left_out_library(table.library_file, table.system)
        predictor = formula(table.collective, table.machine(), library, table.settings())
        sizes = [size for size, _ in table.rows]
        costs, picks = choose(predictor.question, np.array(sizes, float))
        choice_of = dict(zip(sizes, [costs[pick] for pick in picks.tolist()], strict=True))
        points = sorted(set(sizes) - {error.size_bytes for error in six})
        nodes = "several nodes" if predictor.question.fabric else "one node"
        for error in six:
            place = bisect(points, error.size_bytes)
            if 0 < place < len(points):
                ends = [choice_of[points[place - 1]], choice_of[points[place]]]
                differ = len({(end.algorithm, end.protocol) for end in ends}) > 1
                title = "of different choices" if differ else "of one choice"
                for column in (nodes, "all"):
                    groups[title, column][error.band].append(abs(error.relative))
    text = ACROSS
    for title in ("of one choice", "of different choices"):
        cells = []
        for column in ("one node", "several nodes", "all"):
            of_band = groups[title, column]
            cells.append(" / ".join(_percent(float(np.median(of_band[band]))) for band in BANDS))
        rows = sum(len(values) for values in groups[title, "all"].values())
        text += f"| {title} | {rows} | {' | '.join(cells)} |\n"
    return text.rstrip("\n")


def _left_out(errors: Sequence[Error]) -> Iterator[str]:
    def line(title: str, own: Iterable[Error]) -> str:
        of = list(own)
        return (
            f"| {title} | "
            f"{' | '.join(_cell(error for error in of if error.method == way) for way in METHODS)} "
            "|\n"
        )

    development = [error for error in errors if error.table.part == "development"]
    yield line("**development tables alone**", development)
    yield line("**added tables**", (error for error in errors if error.table.part == "added"))
    yield line("**all**", errors)
    for collective in sorted({error.table.collective for error in errors}):
        yield line(
            f"{collective}, all",
            (error for error in errors if error.table.collective == collective),
        )


def _furthest(errors: Sequence[Error]) -> Iterator[str]:
    systems: dict[str, list[Error]] = defaultdict(list)
    for error in errors:
        if error.method == METHODS[0]:
            systems[error.table.system].append(error)
    for system, own in sorted(
        systems.items(), key=lambda item: -float(np.mean(list(medians(item[1]).values())))
    )[:LARGEST]:
        found = medians(own)
        cells = [_percent(found[band]) if band in found else "-" for band in BANDS]
        yield f"| {system} | {len({error.table.name for error in own})} | {' | '.join(cells)} |\n"


def _later() -> Iterator[str]:
    tables = published_tables(later=True)
    yield LATER.format(tables=len(tables))
    for table in tables:
        errors = errors_of(table, by_formula=True)
        cells = (_cell(error for error in errors if error.method == way) for way in METHODS[:2])
        yield f"| {table.name} | {table.ranks} of {table.topology} | {' | '.join(cells)} |\n"


def _forced() -> Iterator[str]:
    yield FORCED_HEAD
    for name, ranks, version, variables, size, measured, source in FORCED:
        nodes = {"nodes": 2} if ranks > 8 else {}
        topology = load_topology(name, **nodes).take(ranks)
        environment, library = parse_environment(variables), load_library("nccl", version)
        question = question_on("all_reduce", topology, library, environment)
        choices = own_choices(question, [size])
        predicted_us = formula_time(
            "all_reduce", size, topology, library=library, environment=environment
        ).time_us
        times = (choices[0].estimate_us, predicted_us) if choices else ()
        rates = [f"{size / time_us / 500 * (ranks - 1) / ranks:.0f}" for time_us in times]
        cells = (f"{ranks} of {name}", version, f"`{variables}`", format_size(size), str(measured))
        yield f"| {' | '.join((*cells, *rates))} | [source]({source}) |\n"


def main() -> None:
    """Print the page."""
    tables = published_tables(added=True)
    development = sum(table.part == "development" for table in tables)
    errors = [error for table in tables for error in errors_of(table, by_formula=True)]
    nccl = [error for error in errors if error.table.library == "nccl"]
    with (data_folder("measurements") / "rows_left_out.csv").open(encoding="utf-8") as stream:
        left_out = sum(1 for _ in stream) - 1
    counts = {"development": development, "added": len(tables) - development, "all": len(tables)}
    head = HEAD.format(lead="".join(_lead(nccl)), date="22 November 2026", tables=234, **counts)
    parts = [head, *_blind(), LAB_HEAD, *_blind(LAB), RCCL_HEAD, *_blind(RCCL_LATER)]
    ways = " | ".join(f"{way}: small / middle / large" for way in METHODS)
    parts += [
        NEXT.format(ways=ways, **counts),
        *_left_out(nccl),
        GROUPS_HEAD.format(ways=ways),
        *_groups(errors),
        *_causes(errors),
        *again(),
        *floors(errors, GROUPS, group_of),
        GROUPS_TAIL.format(against_none=_against_none(errors), across=_across(nccl)),
        ENDING.format(rows=left_out),
        *_furthest(nccl),
        *_later(),
        *_forced(),
        REASONS,
    ]
    print("".join(parts), end="")


if __name__ == "__main__":
    main()
