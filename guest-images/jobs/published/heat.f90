! SPDX-License-Identifier: MIT OR Apache-2.0
! The program of heat.c in Fortran: ranks own blocks of columns, which are contiguous here.
subroutine heat(edge, steps)
  use mpi
  implicit none
  integer, intent(in) :: edge, steps
  integer :: columns, rank, ranks, left, right, error, s
  real(8), allocatable :: now(:, :), next(:, :)
  real(8) :: change, start, seconds, own, all

  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  columns = edge*(rank + 1)/ranks - edge*rank/ranks
  left = MPI_PROC_NULL
  right = MPI_PROC_NULL
  if (rank > 0) left = rank - 1
  if (rank + 1 < ranks) right = rank + 1
  allocate (now(0:edge + 1, 0:columns + 1), next(0:edge + 1, 0:columns + 1))
  now = 0
  next = 0
  ! One edge of the square is hot.
  if (rank == 0) then
    now(:, 0) = 100
    next(:, 0) = 100
  end if

  call MPI_Barrier(MPI_COMM_WORLD, error)
  call step(change)
  call largest(change)
  call one_is_late
  call MPI_Barrier(MPI_COMM_WORLD, error)
  start = MPI_Wtime()
  do s = 1, steps
    call step(change)
    if (mod(s, 10) == 0) call largest(change)
  end do
  call MPI_Barrier(MPI_COMM_WORLD, error)
  seconds = MPI_Wtime() - start

  own = sum(now(1:edge, 1:columns))
  call MPI_Reduce(own, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, 0, MPI_COMM_WORLD, error)
  if (rank == 0) then
    print '(a,i0,1x,i0,a,i0,a,es16.9,a,es16.9,a,f12.9,a)', 'heat ', edge, steps, ' on ', ranks, ': sum ', all, &
      ' change ', change, ', ', seconds, ' s'
  end if

contains

  ! Borders, then a step of all own columns; the largest change.
  subroutine step(most)
    real(8), intent(out) :: most
    real(8), allocatable :: other(:, :)
    real(8) :: d
    integer :: i, j
    call MPI_Sendrecv(now(0, 1), edge + 2, MPI_DOUBLE_PRECISION, left, 1, &
                      now(0, columns + 1), edge + 2, MPI_DOUBLE_PRECISION, right, 1, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    call MPI_Sendrecv(now(0, columns), edge + 2, MPI_DOUBLE_PRECISION, right, 2, &
                      now(0, 0), edge + 2, MPI_DOUBLE_PRECISION, left, 2, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
    most = 0
    do j = 1, columns
      do i = 1, edge
        d = 0.2d0*(now(i, j - 1) + now(i, j + 1) + now(i - 1, j) + now(i + 1, j) - 4*now(i, j))
        next(i, j) = now(i, j) + d
        most = max(most, abs(d))
      end do
    end do
    call move_alloc(now, other)
    call move_alloc(next, now)
    call move_alloc(other, next)
  end subroutine step

  subroutine largest(value)
    real(8), intent(inout) :: value
    real(8) :: all
    call MPI_Allreduce(value, all, 1, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, error)
    value = all
  end subroutine largest
end subroutine heat
