! SPDX-License-Identifier: MIT OR Apache-2.0
! The program of jacobi.c in Fortran; a rank keeps its rows as columns.
subroutine jacobi(unknowns, iterations)
  use mpi
  implicit none
  integer, intent(in) :: unknowns, iterations
  integer :: first, rows, rank, ranks, error, i, j, r, s
  integer, allocatable :: counts(:), starts(:)
  real(8), allocatable :: matrix(:, :), right(:), x(:), own(:)
  real(8) :: change, start, seconds

  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  allocate (counts(ranks), starts(ranks))
  do r = 1, ranks
    starts(r) = unknowns*(r - 1)/ranks
    counts(r) = unknowns*r/ranks - starts(r)
  end do
  first = starts(rank + 1)
  rows = counts(rank + 1)
  allocate (matrix(unknowns, rows), right(rows), own(rows), x(unknowns))
  x = 0
  do i = 1, rows
    do j = 1, unknowns
      matrix(j, i) = 1d0/(1 + mod(first + i - 1 + 3*(j - 1), 7))
    end do
    matrix(first + i, i) = 2d0*unknowns
    right(i) = mod(first + i - 1, 11)
  end do

  call MPI_Barrier(MPI_COMM_WORLD, error)
  call iterate(change)
  call one_is_late
  call MPI_Barrier(MPI_COMM_WORLD, error)
  start = MPI_Wtime()
  do s = 1, iterations
    call iterate(change)
  end do
  call MPI_Barrier(MPI_COMM_WORLD, error)
  seconds = MPI_Wtime() - start

  if (rank == 0) then
    print '(a,i0,1x,i0,a,i0,a,es16.9,a,es16.9,a,f12.9,a)', 'jacobi ', unknowns, iterations, ' on ', ranks, ': sum ', &
      sum(x), ' change ', change, ', ', seconds, ' s'
  end if

contains

  ! One iteration; the squared change of all ranks.
  subroutine iterate(all)
    real(8), intent(out) :: all
    real(8) :: changed, d
    integer :: k
    changed = 0
    do k = 1, rows
      d = (right(k) - dot_product(matrix(:, k), x))/matrix(first + k, k)
      own(k) = x(first + k) + d
      changed = changed + d*d
    end do
    call MPI_Allgatherv(own, rows, MPI_DOUBLE_PRECISION, x, counts, starts, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
    call MPI_Allreduce(changed, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  end subroutine iterate
end subroutine jacobi
