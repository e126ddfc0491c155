! SPDX-License-Identifier: MIT OR Apache-2.0
! Numbers that four ranks sort by exchanges with their neighbours, by mpif.h.
      program sorts
      implicit none
      include 'mpif.h'
      integer own, each
      parameter (each = 8)
      integer rank, ranks, error, turn, peer, i, j, keep
      integer mine(each), other(each), both(2 * each), all(64)
      integer status(MPI_STATUS_SIZE)
      call MPI_INIT(error)
      call MPI_COMM_RANK(MPI_COMM_WORLD, rank, error)
      call MPI_COMM_SIZE(MPI_COMM_WORLD, ranks, error)
      own = 17
      do i = 1, each * ranks
         own = mod(own * 31 + 7, 1009)
         all(i) = own
      end do
      call MPI_SCATTER(all, each, MPI_INTEGER, mine, each,
     &                 MPI_INTEGER, 0, MPI_COMM_WORLD, error)
      do turn = 0, ranks - 1
         if (mod(rank + turn, 2) .eq. 0) then
            peer = rank + 1
         else
            peer = rank - 1
         end if
         if (peer .lt. 0 .or. peer .ge. ranks) peer = MPI_PROC_NULL
         call MPI_SENDRECV(mine, each, MPI_INTEGER, peer, turn, other,
     &                     each, MPI_INTEGER, peer, turn,
     &                     MPI_COMM_WORLD, status, error)
         do i = 1, each
            both(i) = mine(i)
            both(each + i) = mine(i)
            if (peer .ne. MPI_PROC_NULL) both(each + i) = other(i)
         end do
         do i = 1, 2 * each
            do j = i + 1, 2 * each
               if (both(j) .lt. both(i)) then
                  keep = both(i)
                  both(i) = both(j)
                  both(j) = keep
               end if
            end do
         end do
         if (peer .eq. MPI_PROC_NULL) then
            do i = 1, each
               mine(i) = both(2 * i)
            end do
         else if (peer .gt. rank) then
            do i = 1, each
               mine(i) = both(i)
            end do
         else
            do i = 1, each
               mine(i) = both(each + i)
            end do
         end if
      end do
      call MPI_GATHER(mine, each, MPI_INTEGER, all, each, MPI_INTEGER,
     &                0, MPI_COMM_WORLD, error)
      if (rank .eq. 0) then
         do i = 2, each * ranks
            if (all(i) .lt. all(i - 1)) stop 1
         end do
      end if
      call MPI_BARRIER(MPI_COMM_WORLD, error)
      call MPI_FINALIZE(error)
      end
