"""Plays what compiles most of the fast engine: every worker of the whole suite would compile it for
itself, at the same time.
"""

import simcoll

machine = simcoll.load_topology("dgx-h100", nodes=2)
# In lock step; message by message; by classes of messages; with events.
for channels, quotient in ((1, False), (2, False), (1, True)):
    schedule = simcoll.schedule("all_reduce", "ring", nranks=16, channels=channels)
    simcoll.emulate(
        simcoll.bind(schedule, 1 << 20), machine, data="none", engine="fast", quotient=quotient
    )
simcoll.emulate(
    simcoll.bind(simcoll.schedule("all_reduce", "ring", nranks=16), 1 << 20),
    machine,
    data="none",
    engine="fast",
    events=["t=1us box0.gpu3 -> box0.nic3 = 1/2 for 2us"],
)
