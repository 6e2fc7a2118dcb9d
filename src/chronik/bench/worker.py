"""A worker process: reads what to do from standard input, says when it is ready, runs when told, reports.

Lines of JSON both ways: a spec in, `Ready` out, any line in to start, `Progress` out now and then, `Tally` at the end.
"""

from __future__ import annotations

import gc
import sys
from typing import Protocol

import msgspec

from chronik.bench.specs import AnySpec, CommitSpec, ReadSpec, SendSpec, TransactSpec
from chronik.bench.tally import AnyReport, Failed, Ready, Tally
from chronik.bench.window import Window
from chronik.client.cluster import Cluster
from chronik.client.errors import ClientError
from chronik.protocol.errors import KafkaError

EXIT_FAILED = 1


class Work(Protocol):
    def run(self, window: Window) -> Tally: ...

    def close(self) -> None: ...


def tell(report: AnyReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def prepare(spec: AnySpec, cluster: Cluster) -> Work:
    """Connect and make everything that is needed, so that the run itself does nothing else."""
    match spec:
        case SendSpec():
            from chronik.bench.sender import Sender

            return Sender(spec, cluster)
        case ReadSpec():
            from chronik.bench.reader import Reader

            return Reader(spec, cluster)
        case CommitSpec():
            from chronik.bench.committer import Committer

            return Committer(spec, cluster)
        case TransactSpec():
            from chronik.bench.transactor import Transactor

            return Transactor(spec, cluster)


def main() -> int:
    spec = msgspec.json.decode(sys.stdin.buffer.readline(), type=AnySpec)
    try:
        with Cluster(spec.bootstrap) as cluster:
            work = prepare(spec, cluster)
            gc.freeze()
            tell(Ready())
            if not sys.stdin.buffer.readline():
                return EXIT_FAILED  # whoever started this is gone
            tell(work.run(Window(spec.warmup_s, spec.duration_s, tell)))
            work.close()
    except (ClientError, KafkaError, ValueError) as error:
        tell(Failed(str(error)))
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
