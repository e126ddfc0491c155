! SPDX-License-Identifier: MIT OR Apache-2.0
! The program of grid.c in Fortran, with the module mpi_f08; here rows are the derived datatype.
subroutine grid(size, count)
  use mpi_f08
  implicit none
  integer, intent(in) :: size, count
  integer :: edge, sweeps, input(2), width, height, place(2), shape(2), rank, ranks, near(4), s
  logical :: around(2)
  real(8), allocatable :: now(:, :), next(:, :), source(:, :)
  real(8) :: residual, start, seconds, own, all
  type(MPI_Comm) :: cartesian
  type(MPI_Datatype) :: row

  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  input = [size, count]
  ! As programs do that read their input on one rank.
  call MPI_Bcast(input, 2, MPI_INTEGER, 0, MPI_COMM_WORLD)
  edge = input(1)
  sweeps = input(2)
  shape = 0
  around = .false.
  call MPI_Dims_create(ranks, 2, shape)
  call MPI_Cart_create(MPI_COMM_WORLD, 2, shape, around, .false., cartesian)
  call MPI_Cart_coords(cartesian, rank, 2, place)
  call MPI_Cart_shift(cartesian, 0, 1, near(1), near(2))
  call MPI_Cart_shift(cartesian, 1, 1, near(3), near(4))
  ! The first dimension of arrays lies along the second of the grid, as in C.
  height = edge*(place(1) + 1)/shape(1) - edge*place(1)/shape(1)
  width = edge*(place(2) + 1)/shape(2) - edge*place(2)/shape(2)
  call MPI_Type_vector(height, 1, width + 2, MPI_DOUBLE_PRECISION, row)
  call MPI_Type_commit(row)
  allocate (now(0:width + 1, 0:height + 1), next(0:width + 1, 0:height + 1), source(0:width + 1, 0:height + 1))
  now = 0
  next = 0
  source = 1d0/(real(edge, 8)*edge)

  call MPI_Barrier(cartesian)
  call sweep(residual)
  call total(residual)
  call one_is_late
  call MPI_Barrier(cartesian)
  start = MPI_Wtime()
  do s = 1, sweeps
    call sweep(residual)
    if (mod(s, 5) == 0) call total(residual)
  end do
  call MPI_Barrier(cartesian)
  seconds = MPI_Wtime() - start

  own = sum(now(1:width, 1:height))
  call MPI_Reduce(own, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, 0, MPI_COMM_WORLD)
  if (rank == 0) then
    print '(a,i0,1x,i0,a,i0,a,es16.9,a,es16.9,a,f12.9,a)', 'grid ', edge, sweeps, ' on ', ranks, ': sum ', all, &
      ' residual ', residual, ', ', seconds, ' s'
  end if
  call MPI_Type_free(row)
  call MPI_Comm_free(cartesian)

contains

  subroutine relax(left, right, top, bottom, residual)
    integer, intent(in) :: left, right, top, bottom
    real(8), intent(inout) :: residual
    real(8) :: value, d
    integer :: i, j
    do j = top, bottom
      do i = left, right
        value = 0.25d0*(now(i, j - 1) + now(i, j + 1) + now(i - 1, j) + now(i + 1, j) + source(i, j))
        d = value - now(i, j)
        residual = residual + d*d
        next(i, j) = value
      end do
    end do
  end subroutine relax

  subroutine sweep(residual)
    real(8), intent(out) :: residual
    real(8), allocatable :: other(:, :)
    type(MPI_Request) :: requests(8)
    call MPI_Irecv(now(1, 0), width, MPI_DOUBLE_PRECISION, near(1), 1, cartesian, requests(1))
    call MPI_Irecv(now(1, height + 1), width, MPI_DOUBLE_PRECISION, near(2), 0, cartesian, requests(2))
    call MPI_Irecv(now(0, 1), 1, row, near(3), 3, cartesian, requests(3))
    call MPI_Irecv(now(width + 1, 1), 1, row, near(4), 2, cartesian, requests(4))
    call MPI_Isend(now(1, 1), width, MPI_DOUBLE_PRECISION, near(1), 0, cartesian, requests(5))
    call MPI_Isend(now(1, height), width, MPI_DOUBLE_PRECISION, near(2), 1, cartesian, requests(6))
    call MPI_Isend(now(1, 1), 1, row, near(3), 2, cartesian, requests(7))
    call MPI_Isend(now(width, 1), 1, row, near(4), 3, cartesian, requests(8))
    residual = 0
    call relax(2, width - 1, 2, height - 1, residual)
    call MPI_Waitall(8, requests, MPI_STATUSES_IGNORE)
    call relax(1, width, 1, 1, residual)
    if (height > 1) call relax(1, width, height, height, residual)
    call relax(1, 1, 2, height - 1, residual)
    if (width > 1) call relax(width, width, 2, height - 1, residual)
    call move_alloc(now, other)
    call move_alloc(next, now)
    call move_alloc(other, next)
  end subroutine sweep

  subroutine total(value)
    real(8), intent(inout) :: value
    real(8) :: all
    call MPI_Allreduce(value, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, cartesian)
    value = all
  end subroutine total
end subroutine grid
