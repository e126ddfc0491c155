! SPDX-License-Identifier: MIT OR Apache-2.0
! Runs reference programs one after the other: `reference heat 1024 30 jacobi 1920 25 grid 1024 30`.
program reference
  use mpi
  implicit none
  external :: heat, jacobi, grid
  integer :: i, size, steps, error
  character(len=16) :: name, text

  call MPI_Init(error)
  do i = 1, command_argument_count() - 2, 3
    call get_command_argument(i, name)
    call get_command_argument(i + 1, text)
    read (text, *) size
    call get_command_argument(i + 2, text)
    read (text, *) steps
    select case (name)
    case ('heat')
      call heat(size, steps)
    case ('jacobi')
      call jacobi(size, steps)
    case ('grid')
      call grid(size, steps)
    case default
      print '(a,a)', 'reference: no program ', name
      call MPI_Abort(MPI_COMM_WORLD, 2, error)
    end select
  end do
  call MPI_Finalize(error)
end program reference
