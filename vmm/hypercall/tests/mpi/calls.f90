! The same calls as calls.f, by the mpi_f08 module.
program calls
  use mpi_f08
  implicit none
  integer :: ierr, me, n, left, right, i
  type(MPI_Request) :: req(2)
  type(MPI_Status) :: stats(2), st
  double precision :: a(30), b(30)
  a = 0
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, me)
  call MPI_Comm_size(MPI_COMM_WORLD, n)
  left = mod(me + n - 1, n)
  right = mod(me + 1, n)
  do i = 1, 5
    call MPI_Barrier(MPI_COMM_WORLD)
  end do
  call MPI_Bcast(a, 4, MPI_DOUBLE_PRECISION, 1, MPI_COMM_WORLD)
  call MPI_Allreduce(MPI_IN_PLACE, a, 3, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
  call MPI_Gather(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD)
  call MPI_Sendrecv(a, 6, MPI_DOUBLE_PRECISION, right, 3, b, 6, MPI_DOUBLE_PRECISION, left, 3, MPI_COMM_WORLD, st)
  call MPI_Irecv(b, 30, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, req(1))
  call MPI_Isend(a, 7, MPI_DOUBLE_PRECISION, right, 9, MPI_COMM_WORLD, req(2))
  call MPI_Waitall(2, req, stats)
  if (me == 0) then
    call MPI_Send(a, 8, MPI_DOUBLE_PRECISION, 1, 4, MPI_COMM_WORLD)
  else if (me == 1) then
    call MPI_Recv(a, 9, MPI_DOUBLE_PRECISION, 0, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
  end if
  call MPI_Finalize()
end program
