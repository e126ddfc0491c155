! SPDX-License-Identifier: MIT OR Apache-2.0
! A wave on a string that four ranks share, by the module mpi: borders are exchanged without blocking, the energy is summed.
program waves
    use mpi
    implicit none
    integer, parameter :: points = 50, steps = 20
    integer :: rank, ranks, error, left, right, step, i, requests(4), statuses(MPI_STATUS_SIZE, 4)
    double precision :: before(0:points + 1), now(0:points + 1), next(0:points + 1), energy, total, first
    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    left = merge(MPI_PROC_NULL, rank - 1, rank == 0)
    right = merge(MPI_PROC_NULL, rank + 1, rank == ranks - 1)
    now = 0
    if (rank == 0) now(points / 2) = 1
    before = now
    first = -1
    do step = 1, steps
        call MPI_Irecv(now(0), 1, MPI_DOUBLE_PRECISION, left, 1, MPI_COMM_WORLD, requests(1), error)
        call MPI_Irecv(now(points + 1), 1, MPI_DOUBLE_PRECISION, right, 2, MPI_COMM_WORLD, requests(2), error)
        call MPI_Isend(now(points), 1, MPI_DOUBLE_PRECISION, right, 1, MPI_COMM_WORLD, requests(3), error)
        call MPI_Isend(now(1), 1, MPI_DOUBLE_PRECISION, left, 2, MPI_COMM_WORLD, requests(4), error)
        call MPI_Waitall(4, requests, statuses, error)
        do i = 1, points
            next(i) = 2 * now(i) - before(i) + 0.25d0 * (now(i - 1) - 2 * now(i) + now(i + 1))
        end do
        before = now
        now(1:points) = next(1:points)
        energy = sum(now(1:points))
        call MPI_Allreduce(energy, total, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
        if (first < 0) first = total
    end do
    ! The sum stays as long as the wave has not come to an end of the string.
    if (abs(total - first) > 1d-9) stop 1
    call MPI_Finalize(error)
end program
