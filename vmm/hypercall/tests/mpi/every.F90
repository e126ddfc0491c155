! The calls of a Fortran program, counted by itself: three ranks write "books.RANK" with lines "FUNCTION CALLS". Compiled three ways, for
! mpif.h, the module mpi and the module mpi_f08.
#if defined(F08)
#define OPAQUE(kind) type(kind)
#define A_STATUS(name) type(MPI_Status) :: name
#define STATUS_LIST(name, n) type(MPI_Status) :: name(n)
#else
#define OPAQUE(kind) integer
#define A_STATUS(name) integer :: name(MPI_STATUS_SIZE)
#define STATUS_LIST(name, n) integer :: name(MPI_STATUS_SIZE, n)
#endif
! In this language's preprocessor an argument is replaced inside a text, too.
#define DO(f) call tally("f"); call f

module books
  implicit none
  character(len=48) :: names(300)
  integer :: calls(300) = 0, kinds = 0
contains
  subroutine tally(name)
    character(len=*), intent(in) :: name
    integer :: i
    do i = 1, kinds
      if (names(i) == name) exit
    end do
    kinds = max(kinds, i)
    names(i) = name
    calls(i) = calls(i) + 1
  end subroutine
end module

module programs
#if defined(F08)
  use, intrinsic :: iso_c_binding, only: c_ptr
  use mpi_f08
#elif defined(MODULE_MPI)
  use mpi
#endif
  use books
  implicit none
#if !defined(F08) && !defined(MODULE_MPI)
  include 'mpif.h'
#endif
  integer :: me, n, left, right, ierr
contains

  subroutine point_to_point()
    double precision :: a(30), b(30), c(30, 4), buffer(1000)
    OPAQUE(MPI_Request) :: q(4)
    OPAQUE(MPI_Message) :: message
    A_STATUS(st)
    STATUS_LIST(stats, 4)
    integer :: i, room, found, done, indices(4)
    logical :: flag
#if defined(F08)
    type(c_ptr) :: address
#endif
    a = 0
    room = 8000
    DO(MPI_Buffer_attach)(buffer, room, ierr)
    ! In a ring: each posts its receives before anybody sends.
    do i = 1, 4
      DO(MPI_Irecv)(c(1, i), 30, MPI_DOUBLE_PRECISION, left, i, MPI_COMM_WORLD, q(i), ierr)
    end do
    DO(MPI_Barrier)(MPI_COMM_WORLD, ierr)
    DO(MPI_Send)(a, 1, MPI_DOUBLE_PRECISION, right, 1, MPI_COMM_WORLD, ierr)
    DO(MPI_Bsend)(a, 2, MPI_DOUBLE_PRECISION, right, 2, MPI_COMM_WORLD, ierr)
    DO(MPI_Ssend)(a, 3, MPI_DOUBLE_PRECISION, right, 3, MPI_COMM_WORLD, ierr)
    DO(MPI_Rsend)(a, 4, MPI_DOUBLE_PRECISION, right, 4, MPI_COMM_WORLD, ierr)
    DO(MPI_Waitall)(4, q, stats, ierr)
    do i = 1, 4
      DO(MPI_Recv_init)(c(1, i), 30, MPI_DOUBLE_PRECISION, left, i, MPI_COMM_WORLD, q(i), ierr)
    end do
    DO(MPI_Startall)(4, q, ierr)
    DO(MPI_Barrier)(MPI_COMM_WORLD, ierr)
    call started()
    DO(MPI_Waitall)(4, q, MPI_STATUSES_IGNORE, ierr)
    DO(MPI_Startall)(4, q, ierr)
    DO(MPI_Barrier)(MPI_COMM_WORLD, ierr)
    call persistent()
    DO(MPI_Waitall)(4, q, MPI_STATUSES_IGNORE, ierr)
    do i = 1, 4
      DO(MPI_Request_free)(q(i), ierr)
    end do
    DO(MPI_Sendrecv)(a, 6, MPI_DOUBLE_PRECISION, right, 5, b, 6, MPI_DOUBLE_PRECISION, left, 5, MPI_COMM_WORLD, st, ierr)
    DO(MPI_Sendrecv_replace)(a, 6, MPI_DOUBLE_PRECISION, right, 5, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
    do i = 6, 9
      DO(MPI_Isend)(a, i, MPI_DOUBLE_PRECISION, right, i, MPI_COMM_WORLD, q(i - 5), ierr)
    end do
    DO(MPI_Probe)(MPI_ANY_SOURCE, 6, MPI_COMM_WORLD, st, ierr)
    flag = .false.
    do while (.not. flag)
      DO(MPI_Iprobe)(left, 6, MPI_COMM_WORLD, flag, MPI_STATUS_IGNORE, ierr)
    end do
    DO(MPI_Recv)(b, 30, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
    DO(MPI_Mprobe)(left, 7, MPI_COMM_WORLD, message, st, ierr)
    DO(MPI_Mrecv)(b, 30, MPI_DOUBLE_PRECISION, message, st, ierr)
    flag = .false.
    do while (.not. flag)
      DO(MPI_Improbe)(left, 8, MPI_COMM_WORLD, flag, message, st, ierr)
    end do
    DO(MPI_Mrecv)(b, 30, MPI_DOUBLE_PRECISION, message, MPI_STATUS_IGNORE, ierr)
    DO(MPI_Recv)(b, 30, MPI_DOUBLE_PRECISION, left, MPI_ANY_TAG, MPI_COMM_WORLD, st, ierr)
    DO(MPI_Waitall)(4, q, MPI_STATUSES_IGNORE, ierr)
    do i = 1, 6
      DO(MPI_Irecv)(b, 30, MPI_DOUBLE_PRECISION, left, 10, MPI_COMM_WORLD, q(1), ierr)
      DO(MPI_Isend)(a, 30, MPI_DOUBLE_PRECISION, right, 10, MPI_COMM_WORLD, q(2), ierr)
      flag = .false.
      found = 0
      select case (i)
      case (1)
        do while (.not. flag)
          DO(MPI_Test)(q(1), flag, st, ierr)
        end do
        DO(MPI_Wait)(q(2), MPI_STATUS_IGNORE, ierr)
      case (2)
        do while (.not. flag)
          DO(MPI_Testall)(2, q, flag, MPI_STATUSES_IGNORE, ierr)
        end do
      case (3)
        do while (found < 2)
          DO(MPI_Testany)(2, q, done, flag, MPI_STATUS_IGNORE, ierr)
          if (flag) found = found + 1
        end do
      case (4)
        do while (found < 2)
          DO(MPI_Testsome)(2, q, done, indices, MPI_STATUSES_IGNORE, ierr)
          found = found + done
        end do
      case (5)
        DO(MPI_Waitany)(2, q, done, st, ierr)
        DO(MPI_Waitany)(2, q, done, st, ierr)
      case (6)
        do while (found < 2)
          DO(MPI_Waitsome)(2, q, done, indices, stats, ierr)
          found = found + done
        end do
      end select
    end do
#if defined(F08)
    DO(MPI_Buffer_detach)(address, room, ierr)
#else
    DO(MPI_Buffer_detach)(buffer, room, ierr)
#endif
  end subroutine

  subroutine started()
    double precision :: a(30)
    OPAQUE(MPI_Request) :: q(4)
    a = 0
    DO(MPI_Isend)(a, 1, MPI_DOUBLE_PRECISION, right, 1, MPI_COMM_WORLD, q(1), ierr)
    DO(MPI_Ibsend)(a, 2, MPI_DOUBLE_PRECISION, right, 2, MPI_COMM_WORLD, q(2), ierr)
    DO(MPI_Issend)(a, 3, MPI_DOUBLE_PRECISION, right, 3, MPI_COMM_WORLD, q(3), ierr)
    DO(MPI_Irsend)(a, 4, MPI_DOUBLE_PRECISION, right, 4, MPI_COMM_WORLD, q(4), ierr)
    DO(MPI_Waitall)(4, q, MPI_STATUSES_IGNORE, ierr)
  end subroutine

  subroutine persistent()
    double precision :: a(30)
    OPAQUE(MPI_Request) :: q(4)
    integer :: i
    a = 0
    DO(MPI_Send_init)(a, 1, MPI_DOUBLE_PRECISION, right, 1, MPI_COMM_WORLD, q(1), ierr)
    DO(MPI_Bsend_init)(a, 2, MPI_DOUBLE_PRECISION, right, 2, MPI_COMM_WORLD, q(2), ierr)
    DO(MPI_Ssend_init)(a, 3, MPI_DOUBLE_PRECISION, right, 3, MPI_COMM_WORLD, q(3), ierr)
    DO(MPI_Rsend_init)(a, 4, MPI_DOUBLE_PRECISION, right, 4, MPI_COMM_WORLD, q(4), ierr)
    do i = 1, 4
      DO(MPI_Start)(q(i), ierr)
    end do
    DO(MPI_Waitall)(4, q, MPI_STATUSES_IGNORE, ierr)
    do i = 1, 4
      DO(MPI_Request_free)(q(i), ierr)
    end do
  end subroutine

  subroutine collectives()
    double precision :: a(30), b(30)
    integer :: counts(3), places(3), bytes(3), i
    OPAQUE(MPI_Datatype) :: types(3)
    OPAQUE(MPI_Request) :: q
    a = 0
    b = 0
    do i = 1, 3
      counts(i) = 2
      places(i) = 2 * (i - 1)
      bytes(i) = 16 * (i - 1)
      types(i) = MPI_DOUBLE_PRECISION
    end do
    DO(MPI_Bcast)(a, 4, MPI_DOUBLE_PRECISION, 1, MPI_COMM_WORLD, ierr)
    DO(MPI_Reduce)(a, b, 4, MPI_DOUBLE_PRECISION, MPI_MAX, 2, MPI_COMM_WORLD, ierr)
    DO(MPI_Allreduce)(MPI_IN_PLACE, a, 3, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
    DO(MPI_Gather)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, ierr)
    DO(MPI_Gatherv)(a, 2, MPI_DOUBLE_PRECISION, b, counts, places, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, ierr)
    DO(MPI_Scatter)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, ierr)
    DO(MPI_Scatterv)(a, counts, places, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, ierr)
    DO(MPI_Allgather)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierr)
    DO(MPI_Allgatherv)(a, 2, MPI_DOUBLE_PRECISION, b, counts, places, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierr)
    DO(MPI_Alltoall)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierr)
    DO(MPI_Alltoallv)(a, counts, places, MPI_DOUBLE_PRECISION, b, counts, places, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierr)
    DO(MPI_Alltoallw)(a, counts, bytes, types, b, counts, bytes, types, MPI_COMM_WORLD, ierr)
    DO(MPI_Reduce_scatter)(a, b, counts, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
    DO(MPI_Reduce_scatter_block)(a, b, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
    DO(MPI_Scan)(a, b, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
    DO(MPI_Exscan)(a, b, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierr)
    DO(MPI_Reduce_local)(a, b, 2, MPI_DOUBLE_PRECISION, MPI_SUM, ierr)
    DO(MPI_Ibarrier)(MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Ibcast)(a, 4, MPI_DOUBLE_PRECISION, 1, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Ireduce)(a, b, 4, MPI_DOUBLE_PRECISION, MPI_MAX, 2, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Iallreduce)(MPI_IN_PLACE, a, 3, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Igather)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Igatherv)(a, 2, MPI_DOUBLE_PRECISION, b, counts, places, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Iscatter)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Iscatterv)(a, counts, places, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Iallgather)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Iallgatherv)(a, 2, MPI_DOUBLE_PRECISION, b, counts, places, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Ialltoall)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Ialltoallv)(a, counts, places, MPI_DOUBLE_PRECISION, b, counts, places, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Ialltoallw)(a, counts, bytes, types, b, counts, bytes, types, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Ireduce_scatter)(a, b, counts, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Ireduce_scatter_block)(a, b, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Iscan)(a, b, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, q, ierr)
    call finish(q)
    DO(MPI_Iexscan)(a, b, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, q, ierr)
    call finish(q)
  end subroutine

  subroutine finish(q)
    OPAQUE(MPI_Request), intent(inout) :: q
    DO(MPI_Wait)(q, MPI_STATUS_IGNORE, ierr)
  end subroutine

  subroutine communicators()
    OPAQUE(MPI_Comm) :: made, ring
    OPAQUE(MPI_Request) :: q
    double precision :: a(30), b(30)
    integer :: counts(2), places(2), sizes(1)
    logical :: round(1), keep(1)
    a = 0
    counts = 2
    places = (/0, 2/)
    sizes = 3
    round = .true.
    keep = .true.
    DO(MPI_Comm_dup)(MPI_COMM_WORLD, made, ierr)
    DO(MPI_Barrier)(made, ierr)
    DO(MPI_Comm_free)(made, ierr)
    DO(MPI_Comm_split)(MPI_COMM_WORLD, 0, -me, made, ierr)
    DO(MPI_Bcast)(a, 1, MPI_DOUBLE_PRECISION, 0, made, ierr)
    DO(MPI_Comm_free)(made, ierr)
    DO(MPI_Comm_idup)(MPI_COMM_WORLD, made, q, ierr)
    call finish(q)
    DO(MPI_Comm_free)(made, ierr)
    DO(MPI_Cart_create)(MPI_COMM_WORLD, 1, sizes, round, .false., ring, ierr)
    DO(MPI_Cart_sub)(ring, keep, made, ierr)
    DO(MPI_Comm_free)(made, ierr)
    DO(MPI_Neighbor_allgather)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, ring, ierr)
    DO(MPI_Neighbor_alltoall)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, ring, ierr)
    DO(MPI_Neighbor_alltoallv)(a, counts, places, MPI_DOUBLE_PRECISION, b, counts, places, MPI_DOUBLE_PRECISION, ring, ierr)
    DO(MPI_Ineighbor_alltoall)(a, 2, MPI_DOUBLE_PRECISION, b, 2, MPI_DOUBLE_PRECISION, ring, q, ierr)
    call finish(q)
    DO(MPI_Comm_free)(ring, ierr)
  end subroutine

  subroutine one_sided()
    double precision :: memory(20), a(20)
    OPAQUE(MPI_Win) :: window
    integer(kind=MPI_ADDRESS_KIND) :: bytes, place
    memory = 0
    a = 0
    bytes = 160
    place = 3
    DO(MPI_Win_create)(memory, bytes, 8, MPI_INFO_NULL, MPI_COMM_WORLD, window, ierr)
    DO(MPI_Win_fence)(0, window, ierr)
    DO(MPI_Put)(a, 2, MPI_DOUBLE_PRECISION, right, place, 2, MPI_DOUBLE_PRECISION, window, ierr)
    DO(MPI_Win_fence)(0, window, ierr)
    DO(MPI_Get)(a, 2, MPI_DOUBLE_PRECISION, right, place, 2, MPI_DOUBLE_PRECISION, window, ierr)
    DO(MPI_Win_fence)(0, window, ierr)
    DO(MPI_Win_lock)(MPI_LOCK_SHARED, right, 0, window, ierr)
    DO(MPI_Accumulate)(a, 2, MPI_DOUBLE_PRECISION, right, place, 2, MPI_DOUBLE_PRECISION, MPI_SUM, window, ierr)
    DO(MPI_Win_flush)(right, window, ierr)
    DO(MPI_Win_unlock)(right, window, ierr)
    DO(MPI_Win_free)(window, ierr)
  end subroutine

  subroutine files(path)
    character(len=*), intent(in) :: path
    OPAQUE(MPI_File) :: file
    integer(kind=MPI_OFFSET_KIND) :: place
    OPAQUE(MPI_Request) :: q
    double precision :: a(20)
    character :: packed(200)
    integer :: at
    a = 0
    place = 80 * me
    DO(MPI_File_open)(MPI_COMM_WORLD, path, MPI_MODE_CREATE + MPI_MODE_RDWR, MPI_INFO_NULL, file, ierr)
    DO(MPI_File_write_at)(file, place, a, 10, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE, ierr)
    DO(MPI_File_write_at_all)(file, place, a, 10, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE, ierr)
    DO(MPI_File_sync)(file, ierr)
    DO(MPI_Barrier)(MPI_COMM_WORLD, ierr)
    DO(MPI_File_read_at_all)(file, place, a, 10, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE, ierr)
    DO(MPI_File_iread_at)(file, place, a, 10, MPI_DOUBLE_PRECISION, q, ierr)
    call finish(q)
    DO(MPI_File_close)(file, ierr)
    at = 0
    DO(MPI_Pack)(a, 5, MPI_DOUBLE_PRECISION, packed, 200, at, MPI_COMM_WORLD, ierr)
    at = 0
    DO(MPI_Unpack)(packed, 200, at, a, 5, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierr)
  end subroutine
end module

program every
  use programs
  implicit none
  character(len=400) :: path, name
  integer :: i
  DO(MPI_Init)(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, n, ierr)
  call get_command_argument(1, path)
  call get_command_argument(2, name)
  left = mod(me + n - 1, n)
  right = mod(me + 1, n)
  call point_to_point()
  call collectives()
  call communicators()
  call one_sided()
  call files(trim(path))
  DO(MPI_Finalize)(ierr)
  write (path, '(a, ".", i0)') trim(name), me
  open (unit=7, file=trim(path), action='write')
  do i = 1, kinds
    write (7, '(a, " ", i0)') trim(names(i)), calls(i)
  end do
  close (7)
end program
