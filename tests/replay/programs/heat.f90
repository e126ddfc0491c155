! SPDX-License-Identifier: MIT OR Apache-2.0
! Heat in a rod that is cut into pieces: non-blocking messages with the neighbours, an all-reduce in the end.
program heat
  use mpi
  implicit none
  integer, parameter :: cells = 500
  integer :: rank, ranks, left, right, error, step, requests(4), statuses(MPI_STATUS_SIZE, 4)
  double precision :: now(0:cells + 1), next(0:cells + 1), total, all
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  left = merge(rank - 1, MPI_PROC_NULL, rank > 0)
  right = merge(rank + 1, MPI_PROC_NULL, rank < ranks - 1)
  now = rank
  next = now
  do step = 1, 30
    call MPI_Irecv(now(0), 1, MPI_DOUBLE_PRECISION, left, 1, MPI_COMM_WORLD, requests(1), error)
    call MPI_Irecv(now(cells + 1), 1, MPI_DOUBLE_PRECISION, right, 2, MPI_COMM_WORLD, requests(2), error)
    call MPI_Isend(now(1), 1, MPI_DOUBLE_PRECISION, left, 2, MPI_COMM_WORLD, requests(3), error)
    call MPI_Isend(now(cells), 1, MPI_DOUBLE_PRECISION, right, 1, MPI_COMM_WORLD, requests(4), error)
    call MPI_Waitall(4, requests, statuses, error)
    next(1:cells) = now(1:cells) + 0.25d0 * (now(0:cells - 1) - 2 * now(1:cells) + now(2:cells + 1))
    now(1:cells) = next(1:cells)
  end do
  total = sum(now(1:cells))
  call MPI_Allreduce(total, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  print '(a, i0, a, i0, a, es24.16, a, es24.16)', 'rank ', rank, ' of ', ranks, ': total ', all, ', edge ', now(1)
  call MPI_Finalize(error)
end program heat
