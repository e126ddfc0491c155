! SPDX-License-Identifier: MIT OR Apache-2.0
! A work-sharing loop, a lock and a critical construct, from Fortran.
program sum
    use omp_lib
    implicit none
    integer :: i
    integer(kind=omp_lock_kind) :: lock
    real(8) :: total, count
    total = 0
    count = 0
    call omp_init_lock(lock)
    !$omp parallel
    !$omp do schedule(dynamic, 4)
    do i = 1, 100
        !$omp critical
        total = total + i
        !$omp end critical
    end do
    !$omp end do
    call omp_set_lock(lock)
    count = count + 1
    call omp_unset_lock(lock)
    !$omp end parallel
    if (total /= 5050 .or. count /= 4) stop 3
end program
