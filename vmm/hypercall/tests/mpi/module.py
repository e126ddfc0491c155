# SPDX-License-Identifier: MIT OR Apache-2.0
"""Two ranks under mpi4py: a Python object in a message, arrays of bytes in a sum over all ranks, and a broadcast."""
from mpi4py import MPI

world = MPI.COMM_WORLD
rank = world.Get_rank()
if rank == 0:
    world.send({"text": "hello"}, dest=1, tag=7)
elif rank == 1:
    assert world.recv(source=0, tag=7) == {"text": "hello"}
total = bytearray(8)
world.Allreduce([(rank + 1).to_bytes(8, "little"), 1, MPI.INT64_T], [total, 1, MPI.INT64_T], op=MPI.SUM)
assert int.from_bytes(total, "little") == 3
buffer = bytearray(b"x" * 100 if rank == 0 else 100)
world.Bcast([buffer, MPI.BYTE], root=0)
assert buffer == b"x" * 100
