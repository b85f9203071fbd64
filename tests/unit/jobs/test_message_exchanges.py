"""Messages that one kernel performs together: matched over ranks, and waited for pair by pair."""

from __future__ import annotations

import gzip
import json

import pytest

from simcoll.cli import main
from simcoll.errors import ConfigError
from simcoll.jobs.job import job_of_files
from simcoll.jobs.job_report import job_lines
from simcoll.jobs.job_workload import job_workload
from simcoll.jobs.replay import JobChange

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
COMPUTE_US, SERVICE_US = 500.0, 40.0


class RankEvents:
    """The events of a rank whose kernels of messages are launched when their group ends."""

    def __init__(self, rank, nranks):
        self.rank, self.nranks = rank, nranks
        self.clock, self.correlation = 1000.0, 0
        self.events = []

    def event(self, category, name, begin, time, thread=7, **args):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "tid": thread, "ts": begin, "dur": time,
             "args": args}
        )  # fmt: skip

    def kernel(self, name, stream, begin, time):
        """A kernel, launched 5 us before."""
        self.correlation += 1
        number = self.correlation
        self.event("cuda_runtime", "cudaLaunchKernel", begin - 5, 3.0, correlation=number)
        place = {"stream": stream, "correlation": number}
        self.event("kernel", name, begin, time, thread=stream, **place)

    def message(self, kind, peer, elements, begin):
        """The record of a call inside a group: over before the group's launch."""
        group = {"Process Group Name": "pp", "Group size": self.nranks}
        ranks = str(list(range(self.nranks)))
        ends = {("Dst Rank" if kind == "send" else "Src Rank"): peer}
        sizes = {"In msg nelems": elements, "Out msg nelems": elements, "dtype": "BFloat16"}
        name = {"Collective name": kind, "Process Group Ranks": ranks}
        args = {**group, **name, **ends, **sizes}
        self.event("cpu_op", "record_param_comms", begin, 1.0, **args)

    def write(self, folder):
        self.event("user_annotation", "ProfilerStep#1", 1000.0, self.clock - 900)
        document = {
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.nranks},
            "traceEvents": sorted(self.events, key=lambda event: event["ts"]),
        }
        path = folder / f"rank{self.rank}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(document).encode()))
        return path


def write_job(folder, batches, computes, elements=1 << 20):
    """Ranks that compute and then exchange messages: ``batches`` has, by rank, (kind, peer)."""
    nranks = len(batches)
    ranks = [RankEvents(rank, nranks) for rank in range(nranks)]
    for _ in range(2):
        arrivals = []
        for rank, compute in zip(ranks, computes, strict=True):
            begin = rank.clock + 20
            rank.kernel("gemm", 1, begin, compute)
            for place, (kind, peer) in enumerate(batches[rank.rank]):
                rank.message(kind, peer, elements, begin + 20 + 2 * place)
            arrivals.append(begin + compute)
        for rank, arrival in zip(ranks, arrivals, strict=True):
            partners = [arrivals[peer] for _, peer in batches[rank.rank]]
            end = max(arrival, *partners) + SERVICE_US
            rank.kernel(KERNEL, 2, arrival, end - arrival)
            rank.events[-2]["ts"] = arrival - compute_of(computes, rank) + 40
            rank.clock = end
    return [rank.write(folder) for rank in ranks]


def compute_of(computes, rank):
    return computes[rank.rank]


PAIR = [[("send", 1), ("recv", 1)], [("recv", 0), ("send", 0)]]
RING = [[("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)] for rank in range(4)]
LINE = [
    [("send", 1)],
    [("recv", 0), ("send", 2)],
    [("recv", 1), ("send", 3)],
    [("recv", 2)],
]


@pytest.mark.parametrize("batches", [PAIR, RING, LINE])
def test_batches_are_matched_and_divided_pair_by_pair(tmp_path, batches):
    computes = [COMPUTE_US + 100.0 * rank for rank in range(len(batches))]
    job = job_of_files(write_job(tmp_path, batches, computes))
    assert [meeting.kind for meeting in job.matching.meetings] == ["messages"] * 2
    assert not any(job.matching.alone.values())
    for meeting in job.matching.meetings:
        assert meeting.size_bytes == 2 << 20
        assert meeting.service_ns == SERVICE_US * 1000
    first = job.matching.meetings[0]
    for place, row in enumerate(batches):
        last = max(computes[place], *(computes[peer] for _, peer in row))
        assert first.waiting_ns(place) == (last - computes[place]) * 1000
    assert abs(job.replay_error) < 0.005


def test_a_rank_waits_for_its_partners_alone(tmp_path):
    job = job_of_files(write_job(tmp_path, LINE, [500.0, 500.0, 500.0, 500.0]))
    ends = job.baseline.ends_ns
    slow = job.order.replay(JobChange(slow={3: 2.0})).ends_ns
    first_ends = [job.order.offsets[place] + graph.parts[0].end for place, graph in
                  enumerate(job.graphs)]  # fmt: skip
    later = [slow[node] - ends[node] for node in first_ends]
    assert later == [0, 0, 500_000, 500_000]


def test_a_single_message_meets_a_part_of_a_batch(tmp_path):
    job = job_of_files(write_job(tmp_path, LINE, [500.0] * 4))
    assert job.calls[0][0].kind == "send"
    assert job.calls[1][0].kind == "messages"
    assert [record.kind for record in job.calls[1][0].messages] == ["recv", "send"]


def test_messages_without_their_other_ends_are_not_divided(tmp_path):
    batches = [[("send", 1), ("recv", 1)], [("recv", 0), ("recv", 0)]]
    job = job_of_files(write_job(tmp_path, batches, [500.0, 600.0]))
    assert not job.matching.meetings
    assert [len(numbers) for numbers in job.matching.alone.values()] == [2, 2]
    assert "4 calls of messages are not divided" in "\n".join(job_lines(job))


def test_unequal_sizes_are_refused(tmp_path):
    files = write_job(tmp_path, PAIR, [500.0, 600.0])
    document = json.loads(gzip.decompress(files[1].read_bytes()))
    for event in document["traceEvents"]:
        if event["args"].get("Collective name") == "recv":
            event["args"]["In msg nelems"] = event["args"]["Out msg nelems"] = 3
    files[1].write_bytes(gzip.compress(json.dumps(document).encode()))
    with pytest.raises(ConfigError, match="rank 0 sends 2 MiB to rank 1, which receives 6 B"):
        job_of_files(files)


def test_what_becomes_of_messages(tmp_path, capsys):
    folder = tmp_path / "pair"
    folder.mkdir()
    job = job_of_files(write_job(folder, PAIR, [500.0, 600.0]))
    workload, notes = job_workload(job)
    services = [getattr(part, "service_fs", None) for part in workload.operations]
    assert [time for time in services if time is not None] == [SERVICE_US * 10**9] * 2
    assert "of several messages" in notes[0]
    rows = tmp_path / "rows.csv"
    assert main(["job", str(folder), "-t", "dgx-h100", "--rows", str(rows)]) == 0
    output = capsys.readouterr().out
    table = [line.split()[:5] for line in output.splitlines()]
    assert table.count(["messages", "2", "MiB", "2", "2"]) == 2
    assert rows.read_text().count("send_recv") == 2
    ring = tmp_path / "ring"
    ring.mkdir()
    write_job(ring, RING, [500.0] * 4)
    assert main(["job", str(ring), "-t", "dgx-h100"]) == 2
    assert "messages among more than two ranks" in capsys.readouterr().err
